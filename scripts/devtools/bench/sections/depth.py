"""Builds of a GPT with 12 and 48 layers: all layers compiled, and repeated layers compiled once (``--regional``)."""

from __future__ import annotations

from typing import Any

from devtools.bench.runner import PROCESSES, Bench, alternately, middle, network

GOAL = 0.6
"""Seconds of a build against ``torch.compile`` from nothing."""
_TRAIN = ("--target", "cpu", "--method", "train")


def measure(bench: Bench) -> dict[str, Any]:
    bench.build(network("tiny"), *_TRAIN)  # first, to create what a machine needs only once
    found = {str(layers): _measured(bench, layers) for layers in ((2, 4) if bench.quick else (12, 48))}
    fewest, most = found.values()
    ratios = {}
    for name in ("build", "regional"):
        for layers, row in found.items():
            ratios[f"{name}, {layers} layers, against torch.compile"] = row[f"{name}_seconds"] / row["compile_seconds"]
        ratios[f"{name}, most against fewest layers"] = most[f"{name}_seconds"] / fewest[f"{name}_seconds"]
    return {"layers": found, "ratios": ratios}


def _measured(bench: Bench, layers: int) -> dict[str, Any]:
    case = network("gpt_plain", options={"layers": layers})
    bench.start("eager", case)
    compiled = bench.cold(case)
    built = bench.build(case, *_TRAIN)
    whole = built.bundle.rename(built.bundle.with_name(f"whole-{layers}.aotpack"))
    regional = bench.build(case, *_TRAIN, "--regional")

    def start(bundle: Any) -> Any:
        return lambda: bench.start("bundle", case, "--bundle", bundle, "--backend", "cpu", "--trust", "all")

    runs = alternately({"build": start(whole), "regional": start(regional.bundle)}, bench.times(3))
    row = {"compile_seconds": compiled["process_seconds"]}
    for name, build in {"build": built, "regional": regional}.items():
        bundle = whole if name == "build" else regional.bundle
        row |= {
            f"{name}_seconds": build.seconds,
            f"{name}_cpu_seconds": build.cpu_seconds,
            f"{name}_peak_bytes": build.peak_bytes,
            f"{name}_bytes": bench.json(PROCESSES / "sizes.py", bundle),
            f"{name}_step_seconds": middle(run["t_step_median"] for run in runs[name]),
        }
        bundle.unlink()
    return row

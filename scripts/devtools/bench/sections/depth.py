"""Builds of a GPT with 12 and 48 layers: repeated layers compiled once (the default), or each (``--no-regional``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from devtools.bench.runner import PROCESSES, Bench, Built, alternately, middle, network

GOAL = 0.6
"""Seconds of a build against ``torch.compile`` from nothing."""
_TRAIN = ("--target", "cpu", "--method", "train")
_OPTIONS = {"build": (), "whole": ("--no-regional",)}


def measure(bench: Bench) -> dict[str, Any]:
    bench.build(network("tiny"), *_TRAIN)  # first, to create what a machine needs only once
    found = {str(layers): _measured(bench, layers) for layers in ((2, 4) if bench.quick else (12, 48))}
    fewest, most = found.values()
    ratios = {}
    for name in _OPTIONS:
        for layers, row in found.items():
            ratios[f"{name}, {layers} layers, against torch.compile"] = row[f"{name}_seconds"] / row["compile_seconds"]
        ratios[f"{name}, most against fewest layers"] = most[f"{name}_seconds"] / fewest[f"{name}_seconds"]
    return {"layers": found, "ratios": ratios}


def _measured(bench: Bench, layers: int) -> dict[str, Any]:
    case = network("gpt_plain", options={"layers": layers})
    bench.start("eager", case)
    compiled = bench.cold(case)
    builds = {name: _kept(bench.build(case, *_TRAIN, *options), name) for name, options in _OPTIONS.items()}

    def start(built: Built) -> Any:
        return lambda: bench.start("bundle", case, "--bundle", built.bundle, "--backend", "cpu", "--trust", "all")

    runs = alternately({name: start(built) for name, built in builds.items()}, bench.times(3))
    row = {"compile_seconds": compiled["process_seconds"]}
    for name, built in builds.items():
        row |= {
            f"{name}_seconds": built.seconds,
            f"{name}_cpu_seconds": built.cpu_seconds,
            f"{name}_peak_bytes": built.peak_bytes,
            f"{name}_bytes": bench.json(PROCESSES / "sizes.py", built.bundle),
            f"{name}_step_seconds": middle(run["t_step_median"] for run in runs[name]),
        }
        built.bundle.unlink()
    return row


def _kept(built: Built, name: str) -> Built:
    """A build whose bundle the next build of the same network does not replace."""
    return replace(built, bundle=built.bundle.rename(built.bundle.with_stem(f"{built.bundle.stem}-{name}")))

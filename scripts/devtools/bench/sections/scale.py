"""How build, bundle, load and step grow with depth: 2 to 256 layers, and a graph of 10^5 nodes.

``portable`` runs at all sizes and ``cpu`` at some. ``cpu`` also runs with each layer compiled and
stored once (``--regional``).
"""

from __future__ import annotations

from typing import Any

from devtools.bench.runner import PROCESSES, Bench, network

GOAL = 1.2
"""Seconds of a build, and bytes, per node at the largest size against the middle one."""
SERIES = {
    "portable": ("portable", "--no-regional", (2, 8, 32, 128, 256, 2048)),
    "cpu": ("cpu", "--no-regional", (2, 8, 32)),
    "cpu, layers as regions": ("cpu", "--regional", (2, 8, 32, 128)),
}
QUICK = {"portable": ("portable", "--no-regional", (2, 4)), "cpu, layers as regions": ("cpu", "--regional", (2, 4))}


def measure(bench: Bench) -> dict[str, Any]:
    found = {
        name: {str(layers): _measured(bench, target, option, layers) for layers in sizes}
        for name, (target, option, sizes) in (QUICK if bench.quick else SERIES).items()
    }
    ratios = {}
    for name, sizes in found.items():
        small, large = list(sizes.values())[len(sizes) // 2 - 1], list(sizes.values())[-1]
        for figure in ("compile_and_trace_seconds", "build_cpu_seconds", "load_seconds", "step_seconds"):
            ratios[f"{name}, {figure} a node"] = (large[figure] / large["nodes"]) / (small[figure] / small["nodes"])
        if "code" in large["bytes"]:
            ratios[f"{name}, code"] = large["bytes"]["code"] / small["bytes"]["code"]
    return {"series": found, "ratios": ratios}


def _measured(bench: Bench, target: str, option: str, layers: int) -> dict[str, Any]:
    case = network("stack", options={"layers": layers, "width": 16})
    built = bench.build(case, "--target", target, "--method", "train", option)
    sizes = bench.json(PROCESSES / "sizes.py", built.bundle)
    run = bench.start("bundle", case, "--bundle", built.bundle, "--backend", target, "--trust", "all")
    eager = bench.start("eager", case)
    built.bundle.unlink()
    return {
        "build_seconds": built.seconds,
        "compile_and_trace_seconds": sum(stage["seconds"] for stage in built.report["stages"]),
        "build_cpu_seconds": built.cpu_seconds,
        "build_peak_bytes": built.peak_bytes,
        "bytes": sizes,
        "nodes": sizes["nodes"],
        "load_seconds": run["t_make"],
        "first_step_seconds": run["t_first_step"],
        "step_seconds": run["t_step_median"],
        "eager_step_seconds": eager["t_step_median"],
    }

"""Time and peak memory of a build against a cold ``torch.compile``, a rebuild, and the contents of a bundle."""

from __future__ import annotations

from typing import Any

from devtools.bench.runner import BOTH, PROCESSES, Bench, Case, example, middle, network, timed

GOAL = 0.6

_TRAIN = ("--target", "cpu", "--method", "train")


def cases(bench: Bench) -> list[tuple[Case, int]]:
    """The cases to build, each with its number of repetitions."""
    if bench.quick:
        return [(network("tiny"), 1)]
    return [(example("digits", dynamic=True), 3), (example("gpt"), 3), (network("gpt2"), 1), (network("resnet50"), 1)]


def measure(bench: Bench) -> dict[str, Any]:
    networks = {case.name: _measured(bench, case, times) for case, times in cases(bench)}
    return {
        "networks": networks,
        "ratios": {name: found["build_seconds"] / found["compile_seconds"] for name, found in networks.items()},
        "ratios_processor_time": {n: found["build_cpu_seconds"] / found["compile_cpu_seconds"] for n, found in networks.items()},
        "ratios_memory": {name: found["build_peak_bytes"] / found["compile_peak_bytes"] for name, found in networks.items()},
        "ratios_size": {name: found["bytes"]["bundle"] / found["bytes"]["weights"] for name, found in networks.items()},
    }


def _measured(bench: Bench, case: Case, times: int) -> dict[str, Any]:
    whole = bench.bundle(case, *BOTH)  # first, to create what a machine needs only once
    built, compiled = [], []
    for number in range(times):
        compiled.append(bench.cold(case, number))
        built.append(bench.build(case, *_TRAIN))
    out = bench.work / f"{case.name}-again.aotpack"
    words = ["-m", "aotpack.tools.cli", "build", bench.source(case), "--json", *BOTH]
    rebuild, _ = timed(lambda: bench.python(*words, "-o", out, one_core=False))
    out.unlink()
    return {
        "compile_seconds": middle(run["process_seconds"] for run in compiled),
        "compile_peak_bytes": middle(run["process_peak_bytes"] for run in compiled),
        "build_seconds": middle(build.seconds for build in built),
        "build_cpu_seconds": middle(build.cpu_seconds for build in built),
        "compile_cpu_seconds": middle(run["process_cpu_seconds"] for run in compiled),
        "build_peak_bytes": middle(build.peak_bytes for build in built),
        "build_stages": {stage["name"]: round(stage["seconds"], 3) for stage in built[-1].report["stages"]},
        "rebuild_seconds": rebuild,
        "bytes": bench.json(PROCESSES / "sizes.py", built[-1].bundle),
        "bytes_both_targets_and_methods": bench.json(PROCESSES / "sizes.py", whole),
    }

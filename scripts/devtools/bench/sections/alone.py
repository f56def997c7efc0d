"""Steady steps in separate processes, as in real jobs. The benchmark ``step`` has all contenders in one process.

In one process a contender affects the others. For example, ``torch.compile``'s compiler leaves a
heap of 400 MB. Steps get memory from it faster than from the system.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from devtools.bench.runner import BOTH, Bench, Case, alternately

from . import step

GOAL = 1.0
PROCESSES_EACH = 3


STEPS = {"tiny": 20_000, "digits": 800, "digits-1": 8_000, "digits-1024": 60, "gpt": 40, "gpt2": 12, "resnet50": 15}
"""How many steps of a case take some seconds."""


def measure(bench: Bench) -> dict[str, Any]:
    found = {
        f"{variant.title}, {'one thread' if threads else 'all threads'}": _measured(bench, variant.case, threads)
        for variant in step.variants(bench)
        if not variant.words  # a plain step
        for threads in (1, 0)
    }
    return {"cases": found, "ratios": {title: one["ratio_to_compile"]["cpu"] for title, one in found.items()}}


def _measured(bench: Bench, case: Case, threads: int) -> dict[str, Any]:
    steps = STEPS[case.name]
    words = ["--threads", threads, "--iterations", steps, "--warmup", max(3, steps // 10)]
    runs = alternately(
        {
            "compile": partial(bench.start, "compile", case, *words),
            "cpu": partial(bench.start, "bundle", case, "--bundle", bench.bundle(case, *BOTH), "--backend", "cpu", *words),
        },
        bench.times(PROCESSES_EACH),
    )
    seconds = {kind: [run["t_step_median"] for run in found] for kind, found in runs.items()}
    ratios = [mine / theirs for mine, theirs in zip(seconds["cpu"], seconds["compile"], strict=True)]
    return {
        "processes": len(ratios),
        "seconds": {kind: statistics.median(found) for kind, found in seconds.items()},
        "ratio_to_compile": {"cpu": statistics.median(ratios)},
        "ratio_range": {"cpu": [min(ratios), max(ratios)]},
        "peak_rss_bytes": {kind: statistics.median(run["peak_rss"] for run in found) for kind, found in runs.items()},
    }

"""Steady steps in processes of their own, as jobs have them; ``step`` has all contenders in one process.

What one contender leaves behind there the others find: ``torch.compile``'s compiler, for one, a heap of 400 MB, out of which
steps take their memory sooner than from the system.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from harness import BOTH, Bench, Case, alternately, example, network

GOAL = 1.0
PROCESSES_EACH = 3


def cases(bench: Bench) -> list[tuple[str, Case, int]]:
    """Title, case, and how many steps of it take some seconds."""
    found = [
        ("tiny, batch 8", network("tiny"), 20_000),
        ("digits, batch 64", example("digits"), 800),
        ("digits, batch 1", example("digits", batch=1), 8_000),
        ("digits, batch 1024", example("digits", batch=1024), 60),
        ("GPT, 4 layers, batch 8", example("gpt"), 40),
        ("GPT-2 small, batch 1", network("gpt2"), 12),
        ("ResNet-50, batch 1", network("resnet50"), 15),
    ]
    return found[:1] if bench.quick else found


def measure(bench: Bench) -> dict[str, Any]:
    found = {
        f"{title}, {'one thread' if threads else 'all threads'}": _measured(bench, case, steps, threads)
        for title, case, steps in cases(bench)
        for threads in (1, 0)
    }
    return {"cases": found, "ratios": {title: one["ratio_to_compile"]["cpu"] for title, one in found.items()}}


def _measured(bench: Bench, case: Case, steps: int, threads: int) -> dict[str, Any]:
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

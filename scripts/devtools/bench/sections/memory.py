"""The increase of the resident set by a step: networks against their peers, and memory budgets of the partitioner."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from devtools.bench.runner import BOTH, PROCESSES, WITH_OPTIMIZER, Bench, Case, able, alternately, example, middle, network

GOAL = 1.0
BUDGETS = (1.0, 0.5, 0.2)
_TRIM = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_ARENA_MAX": "1"}
"""malloc gives freed memory back at once."""


def cases(bench: Bench) -> list[Case]:
    if bench.quick:
        return [example("digits")]
    return [example("digits", batch=1024), example("gpt"), network("gpt2"), network("resnet50")]


def measure(bench: Bench) -> dict[str, Any]:
    peaks = {case.name: _networks(bench, case) for case in cases(bench)}
    budgets = {} if bench.quick else _budgets(bench, example("gpt"))
    whole = {case.name: _whole_steps(bench, case) for case in cases(bench)}
    return {
        "peak_bytes": peaks,
        "peak_bytes_of_whole_steps": whole,
        "peak_bytes_by_budget": budgets,
        "ratios": {name: found["cpu"] / found["compile"] for name, found in peaks.items()}
        | {f"{name}, with AdamW": found["cpu"] / min(found["eager"], found["compile"]) for name, found in whole.items()}
        | {f"GPT, memory budget {budget}": found["cpu"] / found["compile"] for budget, found in budgets.items()},
    }


def _networks(bench: Bench, case: Case) -> dict[str, Any]:
    bundle = bench.bundle(case, *BOTH)
    source = ("--model", bench.source(case))
    return _peaks(
        bench,
        {
            "eager": partial(peak, bench, case, "eager", *source),
            "compile": partial(peak, bench, case, "compile", *source),
            "export": partial(_of_exported, bench, case),
            "cpu": partial(peak, bench, case, "bundle", "--bundle", bundle, "--backend", "cpu"),
            "portable": partial(peak, bench, case, "bundle", "--bundle", bundle, "--backend", "portable"),
        },
    )


def _whole_steps(bench: Bench, case: Case) -> dict[str, Any]:
    """Steps with an update by AdamW: eager's fused one, one that ``torch.compile`` compiled, and the bundle's."""
    bundle = bench.bundle(case, *WITH_OPTIMIZER)
    source = ("--optimizer", "--model", bench.source(case))
    return _peaks(
        bench,
        {
            "eager": partial(peak, bench, case, "eager", *source),
            "compile": partial(peak, bench, case, "compile", *source),
            "cpu": partial(peak, bench, case, "bundle", "--optimizer", "--bundle", bundle),
        },
    )


def _budgets(bench: Bench, case: Case) -> dict[str, Any]:
    """Steps with a memory budget: the share of activations that the partitioner may save.

    ``torch.compile`` gets the same.
    """
    found = {}
    for budget in BUDGETS:
        bundle = bench.bundle(case, "--target", "cpu", "--method", "train", "--memory-budget", str(budget))
        compiled = partial(peak, bench, case, "compile", "--model", bench.source(case), BENCH_MEMORY_BUDGET=str(budget))
        contenders = {"compile": compiled, "cpu": partial(peak, bench, case, "bundle", "--bundle", bundle)}
        found[f"{budget:g}"] = _peaks(bench, contenders)
    return found


def _peaks(bench: Bench, contenders: dict[str, Callable[[], dict[str, Any]]]) -> dict[str, Any]:
    works, left_out = able(contenders)
    runs = alternately(works, bench.times(2))
    for kind, reason in left_out.items():
        print(f"memory: {kind} left out: {reason}", file=sys.stderr)
    return {kind: middle(run["peak_bytes"] for run in found) for kind, found in runs.items()}


def _of_exported(bench: Bench, case: Case) -> dict[str, Any]:
    return peak(bench, case, "export", "--artifact", bench.artifact(case, "export"))


def peak(bench: Bench, case: Case, kind: str, *words: object, **environment: str) -> dict[str, Any]:
    """How far a step of one contender raises the resident set, in a new process."""
    common = ["--kind", kind, "--inputs", bench.inputs(case), "--threads", 1]
    return bench.json(PROCESSES / "memory.py", *common, *words, **_TRIM, **environment)

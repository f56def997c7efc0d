"""Steady steps in one process: tiny to large batches, one thread and all, and inference.

``--networks`` measures the rows of the named networks again, and keeps the others. Each row says
when it was measured, and at which load.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from devtools.bench.runner import BOTH, PROCESSES, Bench, Case, example, network
from devtools.machine import measured_now

GOAL = 1.0


@dataclass(frozen=True)
class Variant:
    """A case, the kind of step (options of step.py), and the peers that start from an artifact."""

    case: Case
    title: str
    words: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()


def variants(bench: Bench) -> list[Variant]:
    tiny, digits = network("tiny"), example("digits")
    found = [
        Variant(tiny, "tiny, batch 8", artifacts=("aot_compile", "export")),
        Variant(digits, "digits, batch 64", artifacts=("aot_compile", "export")),
    ]
    if bench.quick:
        return found[:1]
    return [
        *found,
        Variant(example("digits", batch=1), "digits, batch 1"),
        Variant(example("digits", batch=1024), "digits, batch 1024"),
        Variant(example("digits", dynamic=True), "digits, dynamic batch of 64", ("--dynamic",)),
        Variant(digits, "digits, batch 64, inference", ("--infer",), ("aoti",)),
        Variant(example("gpt"), "GPT, 4 layers, batch 8"),
        Variant(network("gpt2"), "GPT-2 small, batch 1"),
        Variant(network("resnet50"), "ResNet-50, batch 1"),
    ]


def measure(bench: Bench) -> dict[str, Any]:
    file = bench.results / "step.json"
    partial_run = bench.networks is not None and file.exists() and not bench.quick
    cases: dict[str, Any] = json.loads(file.read_text())["cases"] if partial_run else {}
    for variant in variants(bench):
        if bench.networks is None or variant.case.name in bench.networks:
            for threads in (1, 0):
                measured = measured_now()
                title = f"{variant.title}, {'one thread' if threads else 'all threads'}"
                cases[title] = {**_measured(bench, variant, threads), "measured": measured}
    return {"cases": cases, "ratios": {title: found["ratio_to_compile"]["cpu"] for title, found in cases.items()}}


def _measured(bench: Bench, variant: Variant, threads: int) -> dict[str, Any]:
    case = variant.case
    words = ["--model", bench.source(case), "--inputs", bench.inputs(case), "--threads", threads, *variant.words]
    words += ["--bundle", f"cpu={bench.bundle(case, *BOTH)}", "--rounds", bench.times(15, 3)]
    for kind in variant.artifacts if threads == 1 else ():
        words += ["--artifact", f"{kind}={bench.artifact(case, kind)}"]
    return bench.json(PROCESSES / "step.py", *words, one_core=threads == 1)

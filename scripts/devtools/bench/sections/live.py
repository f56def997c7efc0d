"""Peak of the memory that tensors take in a step, for the networks of ``networks``, exact to the byte.

``memory`` measures the resident set of whole processes. It depends on the holes in malloc's heap, which
compilers leave. This benchmark counts what torch's allocator gives.
"""

from __future__ import annotations

from typing import Any

from devtools.bench.runner import PROCESSES, Bench, Case
from devtools.bench.sections.networks import BUILD, cases

GOAL = 1.0


def measure(bench: Bench) -> dict[str, Any]:
    chosen = [name for name in cases() if bench.networks is None or name in bench.networks]
    peaks = {name: _peaks(bench, cases()[name]) for name in chosen[: bench.times(len(chosen))]}
    ratios = {name: found["cpu"] / min(found["eager"], found["compile"]) for name, found in peaks.items()}
    return {"peak_bytes": peaks, "ratios": ratios}


def _peaks(bench: Bench, case: Case) -> dict[str, int]:
    source = ["--model", bench.source(case)]
    words = {
        "eager": ["--kind", "eager", *source],
        "compile": ["--kind", "compile", *source],
        "cpu": ["--kind", "bundle", "--bundle", bench.bundle(case, *BUILD), "--backend", "cpu"],
    }
    common = ["--inputs", bench.inputs(case), "--threads", 1]
    return {kind: bench.json(PROCESSES / "live.py", *common, *each)["peak_bytes"] for kind, each in words.items()}

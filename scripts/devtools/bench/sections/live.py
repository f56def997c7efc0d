"""Peak of the memory that tensors take in a step, for the networks of ``networks``, exact to the byte.

``memory`` measures the resident set of whole processes. It depends on the holes in malloc's heap, which
compilers leave. This benchmark counts what torch's allocator gives. ``--networks`` measures the named
networks again, and keeps the rows of the others.
"""

from __future__ import annotations

import json
from typing import Any

from devtools.bench.runner import PROCESSES, Bench, Case
from devtools.bench.sections.networks import STEP, cases

GOAL = 1.0


def measure(bench: Bench) -> dict[str, Any]:
    file = bench.results / "live.json"
    partial_run = bench.networks is not None and file.exists() and not bench.quick
    peaks: dict[str, Any] = json.loads(file.read_text())["peak_bytes"] if partial_run else {}
    chosen = {name: case for name, case in cases().items() if bench.networks is None or name in bench.networks}
    for name in list(chosen)[: bench.times(len(chosen))]:
        peaks[name] = _peaks(bench, chosen[name])
    ratios = {name: found["cpu"] / min(found["eager"], found["compile"]) for name, found in peaks.items()}
    return {"peak_bytes": peaks, "ratios": ratios}


def _peaks(bench: Bench, case: Case) -> dict[str, int]:
    source = ["--model", bench.source(case)]
    return {
        "eager": live(bench, case, "eager", *source),
        "compile": live(bench, case, "compile", *source),
        "cpu": live(bench, case, "bundle", "--bundle", bench.bundle(case, *STEP.build), "--backend", "cpu"),
    }


def live(bench: Bench, case: Case, kind: str, *words: object, **environment: str) -> int:
    """Bytes of tensors at the peak of a step of one contender, in a new process."""
    common = ["--kind", kind, "--inputs", bench.inputs(case), "--threads", 1]
    found: int = bench.json(PROCESSES / "live.py", *common, *words, **environment)["peak_bytes"]
    return found

"""The parts of a step's time, in microseconds, for a model with almost no computation."""

from __future__ import annotations

from typing import Any

from devtools.bench.runner import BOTH, PROCESSES, Bench, network

GOAL = 10.0
"""Microseconds of a step beside the compiled code and the autograd engine."""


def measure(bench: Bench) -> dict[str, Any]:
    case = network("tiny")
    words = ["--kind", "bundle", "--bundle", bench.bundle(case, *BOTH), "--backend", "cpu", "--inputs", bench.inputs(case)]
    words += ["--threads", 1, "--iterations", bench.times(5000, 500)]
    found = bench.json(PROCESSES / "overhead.py", *words)
    return {**found, "ratios": {"beside code and engine, to the goal": sum(found["beside_microseconds"].values()) / GOAL}}

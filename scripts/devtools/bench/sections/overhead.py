"""The parts of a step's time, in microseconds, for models with almost no computation."""

from __future__ import annotations

from typing import Any

from devtools.bench.runner import BOTH, PROCESSES, Bench, Case, network

GOAL = 10.0
"""Microseconds of a step beside the compiled code and the autograd engine."""
TENSORS = {10: 15.0, 200: 40.0}
"""The same goal for calls that take so many tensors."""


def measure(bench: Bench) -> dict[str, Any]:
    found = _measured(bench, network("tiny"), BOTH, bench.times(5000, 500))
    ratios = {"beside code and engine, to the goal": sum(found["beside_microseconds"].values()) / GOAL}
    tensors: dict[str, Any] = {}
    for count, goal in TENSORS.items():
        case = network("parameters", options={"count": count - 1})  # the parameters and the argument
        row = _measured(bench, case, ("--target", "cpu", "--method", "train"), bench.times(2000, 200))
        beside = sum(row["beside_microseconds"].values())
        tensors[str(count)] = {name: row[name] for name in ("calls", "step_microseconds", "beside_microseconds")} | {"goal": goal}
        ratios[f"{count} tensors, to the goal"] = beside / goal
    return {**found, "tensors": tensors, "ratios": ratios}


def _measured(bench: Bench, case: Case, build: tuple[str, ...], iterations: int) -> dict[str, Any]:
    words = ["--kind", "bundle", "--bundle", bench.bundle(case, *build), "--backend", "cpu", "--inputs", bench.inputs(case)]
    return bench.json(PROCESSES / "overhead.py", *words, "--threads", 1, "--iterations", iterations)

"""Steady steps of many kinds of networks, each row as soon as it is measured: eager, ``torch.compile``, bundle.

A row that the results file has already is kept, so an interrupted run continues. ``--networks``
measures the named rows again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from devtools.bench.networks import FACTORIES
from devtools.bench.runner import PROCESSES, Bench, BenchError, Case, example, network
from devtools.machine import provenance

GOAL = 1.0
BUILD = ("--target", "cpu", "--method", "train")


def cases() -> dict[str, Case]:
    """Title to case: the networks, and two whose sizes vary."""
    found = {name: network("network", options={"name": name}, inputs={"name": name}) for name in FACTORIES}
    return {**found, "dynamic_digits": example("digits", dynamic=True), "dynamic_encoder": network("dynamic", dynamic=True)}


def measure(bench: Bench) -> dict[str, Any]:
    file = bench.results / "networks.json"
    known: dict[str, Any] = {} if bench.quick or not file.exists() else json.loads(file.read_text()).get("cases", {})
    wanted = bench.networks or [name for name in cases() if f"{name}, all threads" not in known]
    rows = known
    for name in wanted[: bench.times(len(wanted))]:
        for threads in (1, 0):
            rows[f"{name}, {'one thread' if threads else 'all threads'}"] = _measured(bench, cases()[name], threads)
        if not bench.quick:
            partial = {**provenance(), "minutes": 0, "goal": GOAL, **_result(rows)}
            file.write_text(json.dumps(partial, indent=2) + "\n")
    return _result(rows)


def _result(rows: dict[str, Any]) -> dict[str, Any]:
    order = [f"{name}, {threads}" for name in cases() for threads in ("one thread", "all threads")]
    found = {title: rows[title] for title in order if title in rows}
    return {"cases": found, "ratios": {title: row["ratio_to_better"] for title, row in found.items() if "ratio_to_better" in row}}


def _measured(bench: Bench, case: Case, threads: int) -> dict[str, Any]:
    """One row; its ``ratio_to_better`` is to the faster of eager and ``torch.compile``, of the rounds' median ratios."""
    words = ["--model", bench.source(case), "--inputs", bench.inputs(case), "--threads", threads]
    words += ["--rounds", bench.times(9, 3), *(["--dynamic"] if case.dynamic else [])]
    try:
        words += ["--bundle", f"cpu={bench.bundle(case, *BUILD)}"]
        row = bench.json(PROCESSES / "step.py", *words, one_core=threads == 1)
    except BenchError as error:
        return {"failed": str(error).strip().splitlines()[-1][:300]}
    return {**row, **beside_the_better(row["ratio_to_compile"])}


def beside_the_better(ratios: Mapping[str, float]) -> dict[str, Any]:
    """Which of eager and ``torch.compile`` is faster, and the bundle's ratio to it.

    Ratios of rounds are used, because the load of the machine changes between rounds.
    """
    better = "eager" if ratios["eager"] < 1 else "compile"
    return {"better": better, "ratio_to_better": ratios["cpu"] / ratios[better]}

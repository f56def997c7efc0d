"""Steady steps of many kinds of networks, each row as soon as it is measured: eager, ``torch.compile``, bundle.

A row that the results file has already is kept, so an interrupted run continues. ``--networks``
measures the named rows again. Each row says when it was measured, and at which load.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from devtools.bench.networks import FACTORIES
from devtools.bench.runner import PROCESSES, Bench, BenchError, Case, example, network
from devtools.machine import measured_now, provenance

GOAL = 1.0


@dataclass(frozen=True)
class Kind:
    """A kind of steps: its file of results and goal, the options of the builds and of step.py, and threads (0: all)."""

    file: str
    goal: float = GOAL
    build: tuple[str, ...] = ("--target", "cpu", "--method", "train")
    words: tuple[str, ...] = ()
    threads: tuple[int, ...] = (1, 0)


STEP = Kind("networks.json")
THREADS = {1: "one thread", 0: "all threads"}


def cases() -> dict[str, Case]:
    """Title to case: the networks, and two whose sizes vary."""
    found = {name: network("network", options={"name": name}, inputs={"name": name}) for name in FACTORIES}
    return {**found, "dynamic_digits": example("digits", dynamic=True), "dynamic_encoder": network("dynamic", dynamic=True)}


def prepare(bench: Bench) -> dict[str, str]:
    """Build the bundles, then fill ``torch.compile``'s cache, for a later run that measures.

    Returns what failed, by network.
    """
    failures: dict[str, str] = {}
    chosen = {name: case for name, case in cases().items() if bench.networks is None or name in bench.networks}
    for step in (
        lambda case: bench.bundle(case, *STEP.build),
        partial(_steps, bench, threads=1, rounds=2),
        partial(_steps, bench, threads=0, rounds=2),
    ):
        for name, case in chosen.items():
            if name not in failures:
                try:
                    step(case)
                except BenchError as error:
                    failures[name] = _last_line(error)
    return failures


def _steps(bench: Bench, case: Case, kind: Kind = STEP, *, threads: int, rounds: int) -> dict[str, Any]:
    """The steps of the contenders, in turns."""
    words = ["--model", bench.source(case), "--inputs", bench.inputs(case), "--threads", threads, "--rounds", rounds]
    words += [*(["--dynamic"] if case.dynamic else []), *kind.words, "--bundle", f"cpu={bench.bundle(case, *kind.build)}"]
    return bench.json(PROCESSES / "step.py", *words, one_core=threads == 1)


def _last_line(error: BenchError) -> str:
    return str(error).strip().splitlines()[-1][:300]


def measure(bench: Bench) -> dict[str, Any]:
    return measure_kind(bench, STEP)


def measure_kind(bench: Bench, kind: Kind) -> dict[str, Any]:
    """Measure the networks that the results file lacks, or that were named, and write each row at once."""
    file = bench.results / kind.file
    known: dict[str, Any] = {} if bench.quick or not file.exists() else json.loads(file.read_text()).get("cases", {})
    titles = {name: {f"{name}, {THREADS[threads]}": threads for threads in kind.threads} for name in cases()}
    wanted = bench.networks or [name for name, rows in titles.items() if not rows.keys() <= known.keys()]
    rows = known
    for name in wanted[: bench.times(len(wanted))]:
        for title, threads in titles[name].items():
            rows[title] = _measured(bench, cases()[name], kind, threads)
        if not bench.quick:
            partly = {**provenance(), "minutes": 0, "goal": kind.goal, **_result(rows)}
            file.write_text(json.dumps(partly, indent=2) + "\n")
    return _result(rows)


def _result(rows: dict[str, Any]) -> dict[str, Any]:
    order = [f"{name}, {threads}" for name in cases() for threads in THREADS.values()]
    found = {title: rows[title] for title in order if title in rows}
    return {"cases": found, "ratios": {title: row["ratio_to_better"] for title, row in found.items() if "ratio_to_better" in row}}


def _measured(bench: Bench, case: Case, kind: Kind, threads: int) -> dict[str, Any]:
    """One row; its ``ratio_to_better`` is to the faster of eager and ``torch.compile``, of the rounds' median ratios."""
    measured = measured_now()
    try:
        row = _steps(bench, case, kind, threads=threads, rounds=bench.times(9, 3))
    except BenchError as error:
        return {"failed": _last_line(error), "measured": measured}
    return {**row, **beside_the_better(row["ratio_to_compile"]), "measured": measured}


def beside_the_better(ratios: Mapping[str, float]) -> dict[str, Any]:
    """Which of eager and ``torch.compile`` is faster, and the bundle's ratio to it.

    Ratios of rounds are used, because the load of the machine changes between rounds.
    """
    better = "eager" if ratios["eager"] < 1 else "compile"
    return {"better": better, "ratio_to_better": ratios["cpu"] / ratios[better]}

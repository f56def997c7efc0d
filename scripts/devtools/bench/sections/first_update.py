"""Time from the start of a new process to the end of its first whole step, with AdamW."""

from __future__ import annotations

from functools import partial
from typing import Any

from devtools.bench.runner import WITH_OPTIMIZER, Bench, Case, able, alternately, example, middle, network

GOALS = {"of eager, with import torch": 0.6, "of warm torch.compile, without": 1 / 300}
GOAL = GOALS["of eager, with import torch"]
_FIGURES = ("t_from_spawn_to_first_step", "t_from_import_to_first_step", "cpu_from_import_to_first_step", "t_import_torch")


def measure(bench: Bench) -> dict[str, Any]:
    chosen = [(example("digits"), 7), (example("gpt"), 5), (network("resnet50"), 3)][: bench.times(3)]
    found = {case.name: _measured(bench, case, bench.times(times, 2)) for case, times in chosen}
    return {
        "threads": 1,
        "seconds": found,
        "goals": GOALS,
        "ratios": {name: _ratio(kinds, "eager", "t_from_spawn_to_first_step") for name, kinds in found.items()},
        "ratios_to_warm_compile": {
            name: _ratio(kinds, "compile", "t_from_import_to_first_step") for name, kinds in found.items()
        },
    }


def _ratio(kinds: dict[str, dict[str, Any]], peer: str, figure: str) -> float:
    return float(kinds["bundle"][figure] / kinds[peer][figure])


def _measured(bench: Bench, case: Case, times: int) -> dict[str, dict[str, Any]]:
    words = ("--optimizer",)
    contenders, _ = able({
        "eager": partial(bench.start, "eager", case, *words),
        "compile": partial(bench.start, "compile", case, *words),
        "bundle": partial(bench.start, "bundle", case, *words, "--bundle", bench.bundle(case, *WITH_OPTIMIZER)),
    })  # fmt: skip
    found = alternately(contenders, times)
    return {kind: {figure: middle(run[figure] for run in runs) for figure in _FIGURES} for kind, runs in found.items()}

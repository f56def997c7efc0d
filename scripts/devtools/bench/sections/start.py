"""Time from the start of a new process to the end of its first step, with a warm and a cold page cache."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from devtools.bench.runner import BOTH, PROCESSES, Bench, Case, able, alternately, example, middle, network

GOAL = 50.0

_FIGURES = (
    "t_from_spawn_to_first_step",
    "t_from_import_to_first_step",
    "cpu_from_import_to_first_step",
    "t_import_torch",
    "t_import",
    "t_make",
    "t_first_step",
    "t_step_median",
)
WHOLE = "t_from_import_to_first_step"
_GOALS = {"digits": 300.0, "gpt2": 50.0}


def cases(bench: Bench) -> list[tuple[Case, int]]:
    """Cases from small to large, each with its number of processes per contender.

    ``--quick`` uses only the small one.
    """
    if bench.quick:
        return [(example("digits"), 2)]
    found = [(example("digits"), 5), (network("gpt2"), 2), (network("resnet50"), 2)]
    return [(case, times) for case, times in found if bench.networks is None or case.name in bench.networks]


def measure(bench: Bench) -> dict[str, Any]:
    networks = {case.name: _measured(bench, case, times) for case, times in cases(bench)}

    def ratios(kind: str, figure: str = WHOLE) -> dict[str, float]:
        return {
            name: found["train"][kind][figure] / found["train"]["bundle_cpu"][figure]
            for name, found in networks.items()
            if kind in found["train"]
        }

    return {
        "threads": 1,
        "networks": networks,
        "goals": _GOALS,
        "ratios": ratios("compile_warm"),
        # On a busy machine torch.compile loses more time, because it waits for other processes.
        # This ratio avoids that.
        "ratios_processor_time": ratios("compile_warm", "cpu_from_import_to_first_step"),
        "ratios_cold": ratios("compile_cold"),
        "ratios_aot_compile": ratios("aot_compile"),
        "over_a_step_seconds": {
            name: found["train"]["bundle_cpu"][WHOLE] - found["train"]["bundle_cpu"]["t_step_median"]
            for name, found in networks.items()
        },
    }


def _measured(bench: Bench, case: Case, times: int) -> dict[str, Any]:
    bundle = bench.bundle(case, *BOTH)
    on = {target: ("--bundle", bundle, "--backend", target) for target in ("cpu", "portable")}
    train: dict[str, Callable[[], dict[str, Any]]] = {
        "eager": partial(bench.start, "eager", case),
        "compile_warm": partial(bench.start, "compile", case),
        "aot_compile": partial(_from_artifact, bench, "aot_compile", case),
        "export": partial(_from_artifact, bench, "export", case),
        "bundle_portable": partial(bench.start, "bundle", case, *on["portable"]),
        "bundle_cpu": partial(bench.start, "bundle", case, *on["cpu"]),
    }
    infer: dict[str, Callable[[], dict[str, Any]]] = {
        "eager": partial(bench.start, "eager", case, "--infer"),
        "aoti": partial(_from_artifact, bench, "aoti", case, "--infer"),
        "bundle_cpu": partial(bench.start, "bundle", case, "--infer", *on["cpu"]),
    }
    compiled_cold = bench.cold(case)
    # The first runs fill torch.compile's cache, extract the bundle's code and write bytecode.
    (train, no_train), (infer, no_infer) = able(train), able(infer)
    found = alternately(train, times)
    found |= {
        "compile_cold": [compiled_cold],
        "compile_warm, cold page cache": [_evicted(bench, train["compile_warm"])],
        "bundle_cpu, cold page cache": [_evicted(bench, train["bundle_cpu"]) for _ in range(times)],
        "bundle_cpu, first load": [_first_load(bench, case, on["cpu"]) for _ in range(times)],
    }
    words = [PROCESSES / "phases.py", "--kind", "bundle", "--inputs", bench.inputs(case), "--threads", 1, *on["cpu"]]
    phases = [bench.json(*words, "--spawned", time.perf_counter(), one_core=False) for _ in range(times)]
    return {
        "train": {kind: _medians(runs) for kind, runs in found.items()},
        "infer": {kind: _medians(runs) for kind, runs in alternately(infer, times).items()},
        "phases_seconds": {name: middle(run[name] for run in phases) for name in phases[0]},
        "left_out": no_train | no_infer,
        "bundle_bytes": bundle.stat().st_size,
    }


def _medians(runs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    runs = list(runs)
    return {figure: middle(run[figure] for run in runs) for figure in _FIGURES} | {"processes": len(runs)}


def _from_artifact(bench: Bench, kind: str, case: Case, *words: object) -> dict[str, Any]:
    return bench.start(kind, case, "--artifact", bench.artifact(case, kind), *words)


def _first_load(bench: Bench, case: Case, on: tuple[object, ...]) -> dict[str, Any]:
    """A start with an empty cache of extracted code."""
    with bench.empty("AOTPACK_CACHE") as caches:
        return bench.start("bundle", case, *on, **caches)


def _evicted(bench: Bench, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A start after torch, bundles and compile caches were removed from the page cache."""
    os.sync()
    for root in (bench.work, _torch_folder()):
        for folder, _, files in os.walk(root):
            for file in files:
                _evict(Path(folder, file))
    return run()


def _torch_folder() -> Path:
    found = find_spec("torch")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _evict(path: Path) -> None:
    if path.is_file():
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)

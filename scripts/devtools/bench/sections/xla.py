"""Bundles on XLA's CPU device, against plain torch_xla and ``torch.compile(backend="openxla")``, on one core each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from devtools.bench.runner import PROCESSES, ROOT, Bench, BenchError, Case, able, alternately, middle, network

GOAL = 3.0
"""Times faster to the end of the first step than torch_xla, compile time counted."""
TARGETS = ("--target", "xla", "--target", "xla:cpu", "--method", "train")
START = ("make", "first step")


def measure(bench: Bench) -> dict[str, Any]:
    """Build here, and measure in torch_xla's own environment, which ``scripts/setup-xla`` creates."""
    return _measured(bench.bundle(case := network("gpt_plain"), *TARGETS), on_torch_xla(bench), case)


def on_torch_xla(bench: Bench) -> Bench:
    """The same benchmark in the environment that has torch_xla."""
    python = ROOT / ".venv-xla" / "bin" / "python"
    if not python.exists():
        raise BenchError("xla: there is no .venv-xla: scripts/setup-xla")
    # Bundles are trusted where they were built.
    variables = {"PYTHONPATH": str(ROOT / "scripts"), "AOTPACK_STATE": bench.environment["AOTPACK_STATE"]}
    return dataclasses.replace(bench, python_path=python, work=_folder(bench.work), variables=variables)


def _folder(work: Path) -> Path:
    """A folder for this environment, because bundles and inputs of another torch release are kept apart."""
    folder = work / "xla"
    folder.mkdir(exist_ok=True)
    return folder


def _measured(bundle: Path, bench: Bench, case: Case) -> dict[str, Any]:
    source = bench.source(case)
    run = partial(run_once, bench, case)
    works, left_out = able(
        {
            "bundle": partial(run, "bundle", "--bundle", bundle),
            "bundle_compiled": partial(run, "compiled", "--bundle", bundle),
            "lazy": partial(run, "lazy", "--model", source),
            "openxla": partial(run, "openxla", "--model", source),
        }
    )
    runs = alternately(works, bench.times(7))
    found = {kind: _middle(some) for kind, some in runs.items()}
    peers = [kind for kind in ("lazy", "openxla") if kind in found]
    ratios = {}
    for ours in ("bundle", "bundle_compiled"):
        for peer in peers:
            ratios[f"{ours}, start against {peer}"] = found[peer]["start_seconds"] / found[ours]["start_seconds"]
            ratios[f"{ours}, step against {peer}"] = found[ours]["step_seconds"] / found[peer]["step_seconds"]
    return {
        "network": case.name,
        "contenders": found,
        "left_out": left_out,
        "ratios": ratios,
        "versions": runs["bundle"][0]["versions"],
    }


def run_once(bench: Bench, case: Case, kind: str, *words: object) -> dict[str, Any]:
    """One run of processes/xla.py."""
    steps = bench.times(20, 3)
    common = ["--kind", kind, "--inputs", bench.inputs(case), "--steps", steps]
    return bench.json(PROCESSES / "xla.py", *common, *words, PJRT_DEVICE="CPU")


def _middle(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians.

    ``start_seconds`` is the time from imports to the end of the first step. It includes
    ``xla_compile_seconds``.
    """
    parts = {part: middle(run["seconds"][part] for run in runs) for part in runs[0]["seconds"]}
    return {
        "seconds": parts,
        "start_seconds": middle(sum(run["seconds"][part] for part in START) for run in runs),
        "xla_compile_seconds": middle(run["xla_compile_seconds"] for run in runs),
        "step_seconds": middle(run["step_seconds"] for run in runs),
    }

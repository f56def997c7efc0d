"""A loop over rows on XLA's CPU device, as a ``scan`` and unrolled: what grows with the number of rows.

Each runs once, in a process on one core. The differences are large factors, and compiling an
unrolled loop takes minutes.
"""

from __future__ import annotations

from typing import Any

from devtools.bench.runner import PROCESSES, Bench, Case, network

from .xla import on_torch_xla, run_once

GOAL = None
ROWS = (16,)
FORMS = {"scan": True, "unrolled": False}


def measure(bench: Bench) -> dict[str, Any]:
    """Build here, and measure in torch_xla's own environment."""
    there = on_torch_xla(bench)
    found = {str(rows): _measured(bench, there, rows) for rows in ROWS}
    figures = ("hlo_bytes", "build_seconds", "load_seconds", "xla_compile_seconds", "step_seconds")
    ratios = {
        f"{rows} rows, {figure}, scan to unrolled": forms["scan"][figure] / forms["unrolled"][figure]
        for rows, forms in found.items()
        for figure in figures
    }
    return {
        "rows": found,
        "ratios": ratios,
        "versions": {"torch": there.python("-c", "import torch; print(torch.__version__)").strip()},
    }


def _measured(bench: Bench, there: Bench, rows: int) -> dict[str, Any]:
    cases = {name: network("recurrent", options={"by_scan": by_scan}, inputs={"rows": rows}) for name, by_scan in FORMS.items()}
    built = {name: _built(bench, case) for name, case in cases.items()}
    runs = {name: run_once(there, case, "bundle", "--bundle", built[name]["bundle"]) for name, case in cases.items()}
    return {
        name: {
            "hlo_bytes": built[name]["hlo_bytes"],
            "build_seconds": built[name]["seconds"],
            "load_seconds": run["seconds"]["make"],
            "xla_compile_seconds": run["xla_compile_seconds"],
            "step_seconds": run["step_seconds"],
            "loss": run["loss"],
        }
        for name, run in runs.items()
    }


def _built(bench: Bench, case: Case) -> dict[str, Any]:
    built = bench.build(case, "--target", "xla", "--method", "train")
    bundle = built.bundle.rename(bench.work / f"{case.name}.aotpack")
    sizes = bench.json(PROCESSES / "sizes.py", bundle)
    return {"bundle": bundle, "hlo_bytes": sizes["HLO, uncompressed"], "seconds": built.seconds}

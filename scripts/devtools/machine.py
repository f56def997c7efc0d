"""The machine and versions of a measurement, for all results files. Imports nothing heavy, so any script can use it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from aotpack.tools.measure.machine import cpu_model

from .paths import ROOT

_WRITTEN = ("scripts/bench/results", "docs")
PACKAGES = ("torch", "transformers", "timm", "diffusers", "aotpack", "aotpack-loader")


def provenance(threads: int | None = None) -> dict[str, Any]:
    """Machine, versions, tree, date and load. ``threads`` is the number of threads used in the measurement."""
    return {
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}
        | ({} if threads is None else {"threads": threads}),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "tree": tree(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load_average": round(os.getloadavg()[0], 2),
    }


def measured_now() -> dict[str, Any]:
    """When and where one row was measured, for files whose rows are measured at different times."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load_average": round(os.getloadavg()[0], 2),
        "cpu": cpu_model(),
        "torch": _version("torch"),
        "tree": tree(),
    }


def row_measured_on(row: Mapping[str, Any]) -> str:
    """When a row was measured and how busy the machine was, as a table says it; empty if the row does not record it."""
    found = row.get("measured")
    return f"{found['date'][:10]}, load {found['load_average']:g}" if found else ""


def tree() -> str:
    """The commit that was measured, and whether files differed from it. Empty outside of a checkout.

    Results and pages are left out: a tool that stores its results changes those.
    """
    commit = _git("rev-parse", "--short=7", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *(f":(exclude){path}" for path in _WRITTEN))
    return commit + (" with changes" if changed else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout.strip()


def measured_on(source: Mapping[str, Any]) -> str:
    """The tree of a result, as a page says it; empty for results that do not record it."""
    return f", tree {source['tree']}" if source.get("tree") else ""


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"

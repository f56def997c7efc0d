"""The machine and versions of a measurement, for all results files. Imports nothing heavy, so any script can use it."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from aotpack.measure.machine import cpu_model

PACKAGES = ("torch", "transformers", "timm", "diffusers", "aotpack", "aotpack-loader")


def provenance(threads: int | None = None) -> dict[str, Any]:
    """Machine, versions, date and load. ``threads`` is the number of threads used in the measurement."""
    return {
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}
        | ({} if threads is None else {"threads": threads}),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"

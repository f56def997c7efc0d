"""Describes the machine that something was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def machine_text() -> str:
    """The machine in words: processor, cores, system, Python."""
    cores = os.cpu_count() or 1
    words = [cpu_model() or platform.machine(), f"{cores} core{'s' if cores != 1 else ''}"]
    return ", ".join([*words, f"{platform.system()} {platform.machine()}", f"Python {platform.python_version()}"])

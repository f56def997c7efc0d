"""The features of this machine's processor, and those that the x86-64 levels of the psABI require."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Final

_V2: Final = ("cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3: Final = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4: Final = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

X86_LEVELS: Final[dict[str, tuple[str, ...]]] = {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64-v2": _V2}
"""Level to the processor flags it needs, as Linux spells them; widest first."""


def architecture() -> str:
    """The machine's architecture in OCI's spelling: ``amd64``, ``arm64``."""
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def system() -> str:
    """The machine's operating system in OCI's spelling: ``linux``, ``darwin``, ``windows``."""
    return platform.system().lower()


@cache
def features() -> frozenset[str]:
    """Flags of the first processor; empty if the system does not report them."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return frozenset(value.split())
    except OSError:
        pass  # not Linux: no flags are known, so only code that needs none may run
    return frozenset()


def best_x86_level() -> str | None:
    """The highest x86-64 level that this machine supports."""
    return next((level for level, needed in X86_LEVELS.items() if features().issuperset(needed)), None)

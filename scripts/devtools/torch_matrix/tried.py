"""Which pairs of releases count as tried. The loader's table (TRIED) holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ENOUGH = 6
"""How many cases must have run for a pair to count."""

Loads = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]
"""Release of the build, release of the load, case, and what became of it."""


def tried(loads: Loads) -> dict[str, tuple[str, ...]]:
    """The minor releases on which every case gave the bits of the release that built it."""
    found: dict[str, list[str]] = {}
    for built, by_release in sorted(loads.items(), key=lambda item: _minor(item[0])):
        for loaded, rows in sorted(by_release.items(), key=lambda item: _minor(item[0])):
            whole = len(rows) >= ENOUGH and all(row["result"] == "bit for bit" for row in rows.values())
            if whole and _minor(loaded) != _minor(built):
                found.setdefault(_name(built), []).append(_name(loaded))
    return {release: tuple(others) for release, others in found.items()}


def _minor(release: str) -> tuple[int, int]:
    major, minor = release.split(".")[:2]
    return int(major), int(minor)


def _name(release: str) -> str:
    return ".".join(map(str, _minor(release)))

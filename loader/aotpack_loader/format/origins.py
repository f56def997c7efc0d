"""Looks up where the nodes of a graph come from. Indices and lengths that do not fit count as unknown."""

from __future__ import annotations

from . import schema


def modules_of(origins: schema.Origins | None, key: str, count: int) -> list[str]:
    """Paths of the modules of the ``count`` nodes of the graph ``key``; the root's is empty, and so is an unknown one."""
    found = None if origins is None else origins.graphs.get(key)
    if origins is None or found is None or len(found.modules) != count:
        return [""] * count
    return [_item(origins.modules, i) for i in found.modules]


def lines_of(origins: schema.Origins | None, key: str, count: int) -> list[str]:
    """Source lines of the ``count`` nodes of the graph ``key`` (``model.py:12``); empty: unknown."""
    found = None if origins is None else origins.graphs.get(key)
    if origins is None or found is None or len(found.lines) != count:
        return [""] * count
    return ["" if i is None else _item(origins.lines, i) for i in found.lines]


def _item(table: list[str], index: int) -> str:
    return table[index] if index < len(table) else ""

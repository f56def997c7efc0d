"""The operators of random programs, as source text with slots that are filled at random.

Slots:

- ``a``: a tensor of real numbers; ``b``: another of the same shape if possible; ``c``: any tensor;
- ``k``: integers or booleans; ``w``: complex numbers; ``v``: a part of ``a``;
- ``d``, ``e``: dimensions of ``a``; ``n``: the size of ``d``; ``z``: the size of the last
  dimension;
- ``i``: indices along ``d``, in one dimension; ``j``: indices along ``d``, with the shape of ``a``.

Each file in ``templates/`` is a kind, with a template a line. ``half`` are operators on numbers of
half precision that round nothing which eager does not round; gradients are not added there.
"""

from __future__ import annotations

from pathlib import Path


def templates(kind: str) -> list[str]:
    """The templates of a kind. At the start of a line the first slot is written without braces."""
    text = (Path(__file__).parent / "templates" / f"{kind}.txt").read_text()
    return [_braced(line) for line in text.splitlines()]


def _braced(line: str) -> str:
    """``a.sin()`` as ``{a}.sin()``, ``(a * 3).long()`` as ``({a} * 3).long()``."""
    opening = "(" if line.startswith("(") else ""
    rest = line.removeprefix(opening)
    name, after = rest[:1], rest[1:2]
    return f"{opening}{{{name}}}{rest[1:]}" if name in "akvw" and after in ". [*+-/>=&<%" else line


_OFTEN = {
    "view": 4,
    "elementwise": 5,
    "reduction": 5,
    "indexing": 6,
    "linear": 1,
    "layer": 4,
    "whole": 3,
    "half": 1,
    "complex": 1,
    "write": 4,
}

KINDS = {kind: (templates(kind), often) for kind, often in _OFTEN.items()}
"""Operators by kind, and how often a kind is drawn."""

PARTS = templates("part")
"""What ``v`` is."""

DRAWS = templates("random")

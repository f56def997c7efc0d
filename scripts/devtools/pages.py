"""Writes generated text into pages of the documentation, between existing marks."""

from __future__ import annotations

import sys
from pathlib import Path


def replace(page: Path, mark: str, text: str) -> None:
    """Replace the text between ``<!-- mark:begin -->`` and ``<!-- mark:end -->`` of a page, which must have them."""
    page.write_text(replaced(page, mark, text))


def replaced(page: Path, mark: str, text: str) -> str:
    """A page with ``text`` between its marks."""
    begin, end = f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
    old = page.read_text()
    start, stop = old.find(begin), old.find(end)
    if not 0 <= start < stop:
        sys.exit(f"{page} has no {begin} … {end}")
    return f"{old[:start]}{begin}\n{text}\n{old[stop:]}"

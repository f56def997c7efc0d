"""Writes results into the README's table and pages of docs/, between marks. ``--pictures`` draws the pictures again.

    python -m devtools.bench.report             prints what it would write
    python -m devtools.bench.report --write     writes them

A part whose benchmark has no results is not changed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devtools.bench import overview, tables
from devtools.machine import measured_on
from devtools.pages import replace
from devtools.paths import RESULTS, ROOT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="update README.md and the pages of docs/ in place")
    parser.add_argument("--pictures", action="store_true", help="draw results/*.png (needs matplotlib)")
    options = parser.parse_args()
    found = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    results = {name: result for name, result in found.items() if "minutes" in result}  # skips other files and old formats
    if options.pictures:
        from devtools.bench import pictures

        pictures.draw(results, RESULTS)
    replaced = {ROOT / "README.md": {"bench": overview.short(results)}}
    for name, sections in tables.PAGES.items():
        page = ROOT / "docs" / name
        replaced[page] = {mark: _section(page, mark, results[mark], make) for mark, make in sections.items() if mark in results}
    replaced[ROOT / "docs" / "performance.md"]["overview"] = overview.overview(results)
    for path, texts in replaced.items():
        for mark, text in texts.items():
            if options.write:
                replace(path, mark, text)
            else:
                print(f"{path.name}, {mark}\n\n{text}\n")


def _section(page: Path, name: str, result: dict[str, Any], make: Callable[[dict[str, Any]], str]) -> str:
    """A picture if there is one, the table, and where and when it was measured."""
    machine, versions = result["machine"], result["versions"]
    on = f"torch {versions['torch']}, {machine['cpu']}, {machine['cores']} cores"
    by_row = any("measured" in row for row in (result.get("cases") or result.get("networks") or {}).values())
    measured = on if by_row else f"{result['date']}, {on}, load {result['load_average']}{measured_on(result)}"
    folder = os.path.relpath(RESULTS, page.parent)
    text = f"{make(result)}\n\n{measured}: [{name}.json]({folder}/{name}.json)."
    return f"![{name}]({folder}/{name}.png)\n\n{text}" if (RESULTS / f"{name}.png").exists() else text


if __name__ == "__main__":
    main()

"""The results as a compact Markdown table: ``table.py --readme`` prints it, ``--write`` puts it into README.md.

It replaces what is between ``<!-- bench:begin -->`` and ``<!-- bench:end -->``, if the README has these marks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
README = BENCH.parent.parent / "README.md"
MARKS = ("<!-- bench:begin -->", "<!-- bench:end -->")
TITLES = {"digits": "digits", "gpt": "GPT", "digits_dynamic": "digits, dynamic batch"}

Row = tuple[str, str, str, str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", action="store_true", help="the README's table (the only one for now)")
    parser.add_argument("--write", action="store_true", help="update the README in place")
    options = parser.parse_args()
    results = {path.stem: json.loads(path.read_text()) for path in (BENCH / "results").glob("*.json") if path.stem in ROWS}
    if not results:
        sys.exit("table: no results yet; run scripts/bench/run")
    text = markdown(results)
    if not options.write:
        print(text)
    elif not replace(text):
        sys.exit(f"table: README.md has no {' … '.join(MARKS)}")


def markdown(results: dict[str, dict[str, Any]]) -> str:
    lines = ["| | eager | `torch.compile` | bundle | ratio | goal |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, rows in ROWS.items():
        if name in results:
            sign = "≥" if name == "start" else "≤"
            for title, *cells in rows(results[name]):
                lines.append(f"| {' | '.join([title, *cells])} | {sign} {results[name]['goal']:g} |")
    newest = max(results.values(), key=lambda result: result["date"])
    machine, versions = newest["machine"], newest["versions"]
    note = (
        f"Medians of runs that alternate; torch {versions['torch']}, {machine['cpu']}, {machine['cores']} cores, one thread; "
        f"by `scripts/bench/run`, {newest['date'][:10]}."
    )
    return "\n".join([*lines, "", note])


def imports(result: dict[str, Any]) -> Iterator[Row]:
    seconds, ratio = result["seconds"], result["ratios"]["load"]
    yield (
        "import: `torch` against `from aotpack_loader import load`",
        "",
        time(seconds["torch"]),
        time(seconds["load"]),
        times(ratio),
    )


def start(result: dict[str, Any]) -> Iterator[Row]:
    for name, found in result["examples"].items():
        eager, warm, cold, bundle = (
            found[kind]["t_from_import_to_first_step"] for kind in ("eager", "compile_warm", "compile_cold", "bundle_cpu")
        )
        title = f"after `import torch` to the end of the first step, {TITLES[name]}"
        compiled = f"{time(warm)} (cold {time(cold)})"
        yield title, time(eager), compiled, time(bundle), f"{times(result['ratios'][name])} faster"


def step(result: dict[str, Any]) -> Iterator[Row]:
    for case, found in result["cases"].items():
        name, _, threads = case.partition(", ")
        if threads == "one thread":
            eager, compiled, bundle = (found["seconds"][kind] for kind in ("eager", "compile", "cpu"))
            yield f"a step, {TITLES[name]}", time(eager), time(compiled), time(bundle), times(found["ratio_to_compile"]["cpu"])


def memory(result: dict[str, Any]) -> Iterator[Row]:
    for name, found in result["peak_bytes"].items():
        batch = result["batch"].get(name)
        title = f"peak memory of a step, {TITLES[name]}" + (f", batch {batch}" if batch else "")
        yield title, size(found["eager"]), size(found["compile"]), size(found["cpu"]), times(result["ratios"][name])


def build(result: dict[str, Any]) -> Iterator[Row]:
    for name, found in result["examples"].items():
        title = f"compiling from nothing, {TITLES[name]}"
        yield title, "", time(found["compile_seconds"]), time(found["build_seconds"]), times(result["ratios"][name])


ROWS = {"import": imports, "start": start, "step": step, "memory": memory, "build": build}


def time(seconds: float) -> str:
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def size(count: float) -> str:
    return f"{count / 1e6:.3g} MB"


def times(ratio: float) -> str:
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.2f} times"


def replace(text: str) -> bool:
    old = README.read_text() if README.exists() else ""
    begin, end = (old.find(mark) for mark in MARKS)
    if not 0 <= begin < end:
        return False
    README.write_text(f"{old[:begin]}{MARKS[0]}\n{text}\n{old[end:]}")
    return True


if __name__ == "__main__":
    main()

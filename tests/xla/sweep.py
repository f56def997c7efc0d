"""Every row of the conformance table on ``xla:cpu``: each passes or is refused, with the reason.

A row is built for XLA and loaded, and its calls are compared with eager's (tests/xla/rows.py). Rows run in
a process beside this one, so that one that crashes is found out; the results go to scripts/bench/results/conformance_xla.json
after every row, and are summed up in docs/xla.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from devtools.pages import replace
from devtools.paths import RESULTS, ROOT

RECORD = RESULTS / "conformance_xla.json"
PAGE = ROOT / "docs" / "xla.md"
REASON = 400
"""Characters of a reason that are kept."""

LARGE = 15
"""Rows that make an area one of its own in the summary."""
TITLES = {"pass": "pass", "refused": "refused", "known": "differ, known", "wrong": "wrong", "crash": "crash"}

Row = dict[str, str]


def main() -> None:
    options = parse()
    if options.worker:
        serve(options.worker)
        return
    rows = {} if options.all else read()
    settled = {name for name, row in rows.items() if not (options.again and row["status"] != "pass")}
    names = [name for name in table() if re.search(options.only, name) and not (options.resume and name in settled)]
    for name, row in run(names):
        rows[name] = row
        write(rows)
        print(f"{row['status']:8} {name}" + (f": {first_line(row['reason'])}" if row["status"] != "pass" else ""), flush=True)
    replace(PAGE, "conformance-xla", summary(rows))
    counts = Counter(row["status"] for row in rows.values())
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    sys.exit(1 if counts["wrong"] + counts["crash"] else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="rows whose names have this in them; other results are kept"
    )
    parser.add_argument("--resume", action="store_true", help="rows that have no result yet")
    parser.add_argument("--again", action="store_true", help="with --resume: rows that did not pass, too")
    parser.add_argument("--worker", nargs="+", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.all = not options.only and not options.resume
    return options


def table() -> list[str]:
    """The names of all rows, in the table's order."""
    from conformance.table import CASES

    return [case.name for case in CASES]


def run(names: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Rows as they end. A process that dies was at the row it began last; another one goes on after it."""
    left = list(names)
    while left:
        command = [sys.executable, "-m", "xla.sweep", "--worker", *left]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            assert process.stdout is not None
            for line in process.stdout:
                told = json.loads(line)
                yield told.pop("name"), told
                left.pop(0)
            if process.wait():
                errors.seek(0)
                last = errors.read().strip().splitlines()[-1:]
                yield left.pop(0), {"status": "crash", "reason": f"the process ended with {process.returncode}: {' '.join(last)}"}


def serve(names: Collection[str]) -> None:
    """The process that runs rows: a line of JSON each on stdout."""
    import torch

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what models print is not for the driver
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    from conformance.table import CASES

    from . import rows

    by_name = {case.name: case for case in CASES}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="aotpack-row-") as folder:
            try:
                outcome = rows.run(by_name[name], Path(folder))
            except Exception as error:
                outcome = rows.Outcome("wrong", rows.explain(error))
        answers.write(json.dumps({"name": name, "status": outcome.status, "reason": outcome.reason[:REASON]}) + "\n")


def first_line(reason: str) -> str:
    return " ".join(reason.split())[:200]


def read() -> dict[str, Row]:
    return dict(json.loads(RECORD.read_text())["rows"]) if RECORD.exists() else {}


def write(rows: Mapping[str, Row]) -> None:
    """All results, in the table's order; of rows that are no more, nothing."""
    from devtools.machine import provenance

    counts = Counter(row["status"] for row in rows.values())
    found: dict[str, Any] = {**provenance(threads=1), "totals": dict(sorted(counts.items()))}
    found["rows"] = {name: rows[name] for name in table() if name in rows}
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


def summary(rows: Mapping[str, Row]) -> str:
    """An area a row, and why what differs does."""
    areas: dict[str, Counter[str]] = {}
    for name, row in rows.items():
        areas.setdefault(name.partition(":")[0].partition(",")[0], Counter())[row["status"]] += 1
    large = {area: counts for area, counts in areas.items() if counts.total() >= LARGE}
    large["others"] = sum((counts for area, counts in areas.items() if area not in large), Counter())
    large["**all**"] = sum(areas.values(), Counter())
    lines = [f"| area | {' | '.join(TITLES.values())} |", f"| --- |{' ---: |' * len(TITLES)}"]
    lines += [f"| {area} | {' | '.join(str(counts[status]) for status in TITLES)} |" for area, counts in large.items()]
    causes: dict[str, list[str]] = {}
    for name, row in rows.items():
        if row["status"] == "known":
            causes.setdefault(row["reason"], []).append(name)
    lines += ["", "What differs, and why:", ""] if causes else []
    lines += [f"- {cause}: {'; '.join(f'*{name}*' for name in names)}" for cause, names in causes.items()]
    left = len(set(table()) - rows.keys())
    return "\n".join([*lines, *(["", f"{left} rows were not run."] if left else [])])


if __name__ == "__main__":
    main()

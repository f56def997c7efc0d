"""``scripts/fuzz``: hostile bundles, or (``operators``) hostile arguments of operators. Results go to scripts/bench/results."""

from __future__ import annotations

import argparse
import datetime
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch

from aotpack_loader.devices import allowed

from ..paths import ROOT
from . import bundles, operators, record

RESULTS = ROOT / "scripts/bench/results/fuzz.json"
CORPUS = ROOT / "tests/hostile"


def main() -> int:
    """Fuzz, print findings, and write counts. The exit code is 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("bundles", "operators", "record", "keep"))
    parser.add_argument("--count", type=int, default=100_000, help="mutants, or calls of each operator (200 are plenty)")
    parser.add_argument("--start", type=int, default=0, help="number of the first one; the same numbers give the same mutants")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--dry-run", action="store_true", help="write no results")
    options = parser.parse_args()
    if options.what == "record":
        record.record()
        return 0
    if options.what == "keep":
        keep(options.start)
        return 0
    numbers = range(options.start, options.start + options.count)
    if options.what == "bundles":
        found = bundles.fuzz(bundles.vectors(ROOT), numbers, seconds=options.seconds)
        wrong = len(found["findings"])
    else:
        found = operators.fuzz(list(allowed.OPERATORS), options.count, start=options.start)
        wrong = len(found["found"]) + len(found["without_calls"])
    print(json.dumps({key: value for key, value in found.items() if key not in ("findings", "found")}))
    if not options.dry_run:
        write(options.what, {"first": options.start, **found})
    return int(bool(wrong))


def write(what: str, found: dict[str, Any]) -> None:
    """Store the results of one kind, with the date and the release of torch."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    date = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    results[what] = {"date": date, "torch": torch.__version__, **found}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def keep(number: int) -> Path:
    """Write the mutant with that number to the corpus of the tests."""
    seeds = bundles.vectors(ROOT)
    name, data = seeds[number % len(seeds)]
    path = CORPUS / f"{name}_{number}.aotpack"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bundles.mutant(data, random.Random(number), sorted(allowed.OPERATORS)))
    print(path)
    return path


if __name__ == "__main__":
    sys.exit(main())

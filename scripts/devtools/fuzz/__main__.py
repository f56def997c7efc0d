"""``scripts/fuzz``: hostile bundles, or (``operators``) hostile arguments of operators. Results go to scripts/bench/results.

``bundles`` goes on where the last run stopped, up to ``--count`` mutants in all. ``operators`` goes on, too, where a run
with the same numbers has left some. Both write results as they go and can be stopped at any time.
``again`` runs all that was found once more, and keeps what is still wrong. ``escapes`` measures what refusing takes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

import torch

from aotpack_loader.devices.sandbox import allowed

from ..paths import ROOT
from . import bundles, cost, escapes, operators, page, record

RESULTS = ROOT / "scripts/bench/results/fuzz.json"
CORPUS = ROOT / "tests/hostile"
Json = dict[str, Any]


def main() -> int:
    """Fuzz, print findings, and write counts. The exit code is 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("bundles", "operators", "escapes", "cost", "again", "record", "keep", "page"))
    parser.add_argument("--count", type=int, default=100_000, help="mutants, or calls of each operator (400 are plenty)")
    parser.add_argument("--start", type=int, help="number of the first one; for bundles: results are not written then")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--dry-run", action="store_true", help="write no results")
    parser.add_argument("--against", default="f946e25", help="for cost: a revision whose loader has no such checks")
    options = parser.parse_args()
    if options.what == "record":
        record.record()
        return 0
    if options.what == "page":
        page.write()
        return 0
    if options.what == "keep":
        keep(options.start)
        return 0
    if options.what == "escapes":
        write("escapes", escapes.measure())
        return 0
    if options.what == "cost":
        write("cost", cost.compare(options.against))
        return 0
    if options.what == "again":
        return int(bool(again()["findings"]))
    if options.what == "bundles":
        found = fuzz_bundles(options.start, options.count, options.seconds, saved=not options.dry_run)
        return int(bool(found["findings"]))
    found = fuzz_operators(options.start or 0, options.count, saved=not options.dry_run)
    return int(bool(found["found"]) or bool(found["without_calls"]))


def fuzz_operators(start: int, count: int, *, saved: bool) -> Json:
    """Run changed calls of all listed operators, or of those that a run has left which was stopped."""
    setting = {"first": start, "calls of each": count}
    results = results_of("operators")
    unfinished = results.get("left") and {key: results.get(key) for key in setting} == setting

    def save(found: Json) -> None:
        left = len(set(allowed.OPERATORS) - set(found["operators"]) - set(found["without_calls"]))
        names = found["operators"] if left else len(found["operators"])
        write("operators", {**found, **setting, "left": left, "operators": names})

    found = operators.fuzz(
        list(allowed.OPERATORS), count, start=start, before=results if unfinished else None,
        save=save if saved else lambda found: None,
    )  # fmt: skip
    shown = {**found, "operators": len(found["operators"])}
    print(json.dumps({key: value for key, value in shown.items() if key != "found"}))
    return found


def fuzz_bundles(start: int | None, count: int, seconds: float, *, saved: bool) -> Json:
    """Run mutants: those after the last run's, or the ``count`` that begin at ``start``."""
    seeds = bundles.vectors(ROOT)
    if start is not None or not saved:
        first = start or 0
        found = bundles.fuzz(seeds, range(first, first + count), seconds=seconds)
    else:
        before = earlier(bundles.mutator(seeds))
        save = lambda found: write("bundles", merged(before, found))  # noqa: E731
        found = bundles.fuzz(seeds, range(before["next"], count), seconds=seconds, save=save)
        found = merged(before, found)
    print(json.dumps({key: value for key, value in found.items() if key != "findings"}))
    return found


def earlier(mutator: str) -> Json:
    """The results so far, if the numbers stand for the same mutants still."""
    results = results_of("bundles")
    fresh = {"mutator": mutator, "next": 0, "mutants": 0, "outcomes": {}, "findings": [], "fixed": []}
    return results if results.get("mutator") == mutator else fresh


def merged(before: Json, found: Json) -> Json:
    """Results of two runs, one after the other."""
    outcomes = dict(before["outcomes"])
    for word, count in found["outcomes"].items():
        outcomes[word] = outcomes.get(word, 0) + count
    return {
        **before,
        "next": max(before["next"], found["next"]),
        "mutants": before["mutants"] + found["mutants"],
        "outcomes": dict(sorted(outcomes.items(), key=lambda item: -item[1])),
        "findings": before["findings"] + found["findings"],
    }


def again() -> Json:
    """Run all findings once more with the code of now, and note those that are fixed."""
    seeds = bundles.vectors(ROOT)
    results = results_of("bundles")
    if results.get("mutator") != bundles.mutator(seeds):
        raise SystemExit("The numbers of these findings stand for other mutants now.")
    numbers = sorted({finding["number"] for finding in results["findings"]})
    left = bundles.fuzz(seeds, numbers)["findings"] if numbers else []
    wrong = {finding["number"] for finding in left}
    fixed = [finding for finding in results["findings"] if finding["number"] not in wrong]
    results = {**results, "findings": left, "fixed": results["fixed"] + fixed}
    write("bundles", results)
    print(f"{len(fixed)} fixed, {len(left)} left")
    return results


def results_of(what: str) -> Json:
    """The stored results of one kind."""
    results: Json = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found: Json = results.get(what, {})
    return found


def write(what: str, found: Json) -> None:
    """Store the results of one kind, with the date and the release of torch."""
    results: Json = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    date = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    results[what] = {**found, "date": date, "torch": torch.__version__}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def keep(number: int) -> Path:
    """Write the mutant with that number to the corpus of the tests."""
    seeds = bundles.vectors(ROOT)
    path = CORPUS / f"{seeds[number % len(seeds)].name}_{number}.aotpack"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bundles.mutant(seeds, number))
    print(path)
    return path


if __name__ == "__main__":
    sys.exit(main())

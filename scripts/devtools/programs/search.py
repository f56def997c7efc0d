"""Random programs: draws operators with a seed, then builds, calls and compares bundles of the programs with eager.

Programs use views, writes, reductions, sorts, indices, convolutions, losses, booleans, integers,
complex numbers and casts, in float64 and float32, over contiguous and other tensors. Outputs,
gradients, written arguments, strides and aliasing are compared. A difference in float32 or half
precision that disappears in float64 is rounding.

Large programs test how operators fuse. Many small ones in a bundle (``--together 32 --lines 6``)
test more operators in the time of one compilation. A failing program is reduced while it still
fails. It is printed as a function and inputs in the form of tests/conformance, to be pasted into a
case. Program NUMBER of a seed is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from devtools.machine import provenance
from devtools.paths import RESULTS, ROOT

from .worker import Outcome, check

RECORD = RESULTS / "programs.json"
RECYCLED = 20
"""Groups of programs after which the process is replaced: tracing leaves things behind."""

console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 140)


def main() -> None:
    options = parse()
    found = dict(run(options))
    recorded = summary(found, options)
    if options.results:
        options.results.write_text(json.dumps(recorded, indent=1) + "\n")
    print(json.dumps(recorded, indent=2) if options.json else text(recorded))
    if options.strict and recorded["failures"]:
        sys.exit(1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/programs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first programs (default 1)")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="begin with this program of the seed (default 0)")
    parser.add_argument("--count", type=int, metavar="N", help="so many programs (default 20, without --minutes)")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin programs for so long")
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="of a program (default 20)")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="in a bundle, of those called alike (default 1)")
    parser.add_argument("--dynamic", action="store_true", help="build for sizes that vary, and call with larger ones, too")
    parser.add_argument("--target", choices=("portable", "cpu"), default="cpu", help="what bundles are built for (default cpu)")
    parser.add_argument(
        "--reduce", type=int, default=30, metavar="N", help="builds to make a failing program smaller (default 30)"
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help=f"write what was found there ({RECORD.relative_to(ROOT)})")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if anything differs from eager")
    options = parser.parse_args()
    if options.count is None and options.minutes is None:
        options.count = 20
    return options


def run(options: argparse.Namespace) -> Iterator[tuple[str, Outcome]]:
    """Outcomes by the programs' names, ``seed/number``."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + 60 * (options.minutes or float("inf"))
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("programs", total=options.count)
        checker = Checker(options)
        for numbers in groups(options):
            if time.monotonic() > end:
                break
            for name, outcome in checker([f"{options.seed}/{number}" for number in numbers]).items():
                yield name, outcome
                if outcome.failed:
                    progress.console.print(report(name, outcome), markup=False)
                counts[outcome.status] += 1
            described = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
            progress.update(task, advance=len(numbers), description=described)
        checker.end()


def groups(options: argparse.Namespace) -> Iterator[list[int]]:
    """Numbers of the programs to check together."""
    numbers = iter(count(options.first) if options.count is None else range(options.first, options.first + options.count))
    while group := list(islice(numbers, options.together)):
        yield group


class Checker:
    """Checks groups of programs in another process. The process is replaced when it has died or run many groups."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._pool: ProcessPoolExecutor | None = None
        self._groups = 0

    def __call__(self, names: list[str]) -> dict[str, Outcome]:
        """The outcome of each program. Programs that end the process together are checked in halves."""
        if self._groups % RECYCLED == 0:
            self.end()
        self._groups += 1
        self._pool = self._pool or ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        options = self._options
        try:
            return self._pool.submit(
                check, names, options.lines, options.target, options.reduce, dynamic=options.dynamic
            ).result()
        except BrokenProcessPool:
            self.end()
        if len(names) == 1:
            return {names[0]: Outcome("crash", "the process died")}
        return self(names[: len(names) // 2]) | self(names[len(names) // 2 :])

    def end(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = None


def report(name: str, outcome: Outcome) -> str:
    """A failure, with a program that reproduces it."""
    source = outcome.program.source if outcome.program is not None else ""
    return f"\n# {name}: {outcome.status}\n{textwrap.indent(outcome.reason[:1500], '#   ')}\n{source}"


def summary(found: dict[str, Outcome], options: argparse.Namespace) -> dict[str, Any]:
    """All results and settings of the run."""
    counts = Counter(outcome.status for outcome in found.values())
    return {
        **provenance(threads=1),
        "target": options.target,
        "seed": options.seed,
        "programs": len(found),
        "lines": options.lines,
        "together": options.together,
        "dynamic": options.dynamic,
        "counts": dict(sorted(counts.items())),
        "failures": {
            name: {"status": one.status, "reason": one.reason[:1500], "source": one.program.source if one.program else ""}
            for name, one in found.items()
            if one.failed
        },
        **{
            kind: {name: one.reason[:300] for name, one in found.items() if one.status == kind}
            for kind in ("refused", "fixed", "strides", "rounding")
        },
    }


def text(recorded: dict[str, Any]) -> str:
    """The summary as text, without failures, which were printed earlier."""
    counts = ", ".join(f"{count} {status}" for status, count in recorded["counts"].items())
    lines = [
        f"{recorded['programs']} programs of {recorded['lines']} lines for {recorded['target']}, "
        f"seed {recorded['seed']}: {counts}"
    ]
    lines += [f"{name} refused: {' '.join(reason.split())}"[:300] for name, reason in recorded["refused"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

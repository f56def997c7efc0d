"""The zoo: builds known architectures, loads each bundle without its source, compares its training with eager's.

Each entry is an architecture on one target, with static sizes or a dynamic batch, in training mode
with dropout on.

A first process makes the model, records eager and builds the bundle. The record has two SGD steps
and an inference, each on other data with a seed of its own. A second, isolated process in an empty
directory loads the bundle and does the same. It cannot import the model's packages. Losses,
outputs, all gradients and buffers, the generator's state after each step and the final parameters
are compared. Failures stay in the table with their reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from devtools.zoo.roll import ARCHITECTURES
from devtools.zoo.run import LOOSER, RECORD, Entry, Line, entries, run_all, stored, write
from devtools.zoo.table import markdown, one_line, screen, update_pages

progress_console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 140)
console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)


def main() -> None:
    options = parse()
    if options.list:
        for item in ARCHITECTURES.values():
            console.print(f"{item.name:18} {item.title}", markup=False)
        return
    if not (options.only or options.target or options.resume):
        write({})
    chosen = planned(options)
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=progress_console, transient=True) as progress:
        task = progress.add_task("zoo", total=len(chosen))

        def done(entry: Entry, line: Line, log: str) -> None:
            progress.console.print(one_line(entry, line), markup=False)
            if options.verbose and line["status"] != "passed":
                progress.console.print(log, markup=False)
            progress.advance(task)

        run_all(chosen, options.jobs, done)
    lines = stored()
    if options.json:
        print(json.dumps(json.loads(RECORD.read_text()), indent=2))
    elif options.markdown:
        print(markdown(lines))
    else:
        console.print(screen(lines, chosen))
    update_pages(lines)
    if options.strict and any(lines[entry]["status"] != "passed" for entry in chosen):
        sys.exit(1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these architectures; other results are kept")
    parser.add_argument("--target", choices=list(LOOSER), help="only this target; other results are kept")
    parser.add_argument("--resume", action="store_true", help="only what has not passed yet; other results are kept")
    parser.add_argument("--jobs", type=int, default=1, help="entries at a time (default 1)")
    parser.add_argument("--list", action="store_true", help="list the architectures")
    parser.add_argument("--json", action="store_true", help="print all results as JSON on stdout")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown on stdout")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if an entry fails")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what a failing process wrote")
    return parser.parse_args()


def planned(options: argparse.Namespace) -> list[Entry]:
    """The entries to run: the requested ones whose package is installed. Slow ones come last."""
    unknown = set(options.only or ()) - set(ARCHITECTURES)
    if unknown:
        sys.exit(f"zoo: no architecture {', '.join(sorted(unknown))}; `scripts/zoo --list` lists them")
    absent = {item.package for item in ARCHITECTURES.values() if find_spec(item.package) is None}
    for package in sorted(absent):
        progress_console.print(f"zoo: {package} is not installed; its architectures are left out", markup=False)
    lines = stored()
    chosen = [
        entry
        for entry in entries()
        if ARCHITECTURES[entry.name].package not in absent
        and (not options.only or entry.name in options.only)
        and options.target in (None, entry.target)
        and not (options.resume and lines.get(entry, {}).get("status") == "passed")
    ]
    return sorted(chosen, key=lambda entry: (entry.target == "cpu", entry.dynamic))


if __name__ == "__main__":
    main()

"""Conformance: builds and loads torch's own operator databases, and compares each sample with eager.

It covers every operator of the databases (ATen's, control flow, custom operators) and every sample
input, in several types, with static and dynamic sizes. Each bundle is built, loaded, called and
differentiated. Outputs, gradients, writes to arguments, aliasing, strides and the final state of
the random generator must equal eager's. Failing samples also run through torch's own
``aot_function`` or, with ``--target cpu``, ``torch.compile``. Some of the bundles are called once
more in a new process without the compiler.

Results are stored by unit (operator, type, sizes and target) in scripts/bench/results,
conformance.json and conformance_units.json. docs/operators.md has the summary. Units that a run
leaves out keep their results. ``--resume`` runs only missing units, on any machine. With
``--again`` it also runs units that did not pass. ``--ops NAME`` alone runs these operators again.
Outcomes are also written to a file in .cache at once. With it ``--resume`` continues inside a unit,
on the machine where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from devtools.pages import replace
from devtools.paths import RESULTS, ROOT

from .found import Found
from .report import markdown
from .results import Results
from .samples import DATABASES, DTYPES, TARGETS, Unit, units

RECORD = RESULTS / "conformance.json"
PAGE = ROOT / "docs" / "operators.md"
PARTIAL = ROOT / ".cache" / "conformance.jsonl"
"""A line a unit and run: what became of its samples, and how many are left."""

SIDE_BY_SIDE = 16
"""Units whose samples are built together."""

RECYCLED = 300
"""Units after which a worker process is replaced: tracing leaves things behind."""

console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 140)


def main() -> None:
    options = parse()
    if options.worker:
        from .worker import serve

        serve(Path(options.worker), limit=options.limit, count=options.samples, size=options.together, values=options.values)
        return
    chosen = units(options.databases, options.dtypes, options.sizes, options.ops, options.target)
    if options.ops and not chosen:
        sys.exit(f"conformance: no operator {', '.join(options.ops)} in {', '.join(options.databases)}")
    PARTIAL.parent.mkdir(exist_ok=True)
    found = Found.read(options.partial) if options.resume or options.report else Found()
    if options.again:
        found = found.settled()
    known = Results.read(options.results)
    todo = [] if options.report else missing(chosen, found, known, options)
    fresh = run(todo, found, options) if todo else None
    later = Results.of(found, fresh)
    results = known.with_later(later, [str(unit) for unit in todo])
    results.write(options.results)
    if options.results == RECORD:
        replace(PAGE, "conformance", markdown(results))
    print(json.dumps(later.recorded(), indent=2) if options.json else markdown(results))
    if options.strict and later.failed:
        sys.exit(1)


def missing(chosen: Sequence[Unit], found: Found, known: Results, options: argparse.Namespace) -> list[Unit]:
    """The units to run: all; with ``--resume`` the incomplete ones; with ``--again`` also those that did not pass."""
    if not options.resume:
        return list(chosen)
    done = {unit for unit, one in known.units.items() if (one.settled if options.again else one.complete)}
    return [unit for unit in chosen if str(unit) not in done and not found.complete(str(unit))]


def run(todo: Sequence[Unit], found: Found, options: argparse.Namespace) -> dict[str, Any]:
    """Check the samples of the units that are not ``found`` yet. Add outcomes to it and to the file of outcomes.

    Returns the results of a new process, for this run alone. Those of earlier runs are in the
    stored results.
    """
    with (
        tempfile.TemporaryDirectory(prefix="aotpack-conformance-", dir=memory()) as folder,
        options.partial.open("a" if options.resume else "w") as partial,
    ):
        (Path(folder) / "fresh").mkdir()
        sweep(todo, found, Path(folder), partial, options)
        return in_fresh_process(Path(folder) / "fresh")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--databases", nargs="+", choices=DATABASES, default=list(DATABASES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES[:4]))
    parser.add_argument("--ops", nargs="+", default=[], metavar="NAME", help="these operators")
    parser.add_argument("--samples", type=int, metavar="N", help="at most so many of each operator's, spread evenly")
    parser.add_argument(
        "--together", type=int, default=1, metavar="N", help="build N samples in one bundle, of several operators"
    )
    parser.add_argument("--values", action="store_true", help="call each bundle with NaN, infinity and values out of range, too")
    parser.add_argument("--sizes", nargs="+", choices=("static", "dynamic"), default=["static", "dynamic"])
    parser.add_argument("--target", choices=TARGETS, default=TARGETS[0], help="what bundles are built for (default portable)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default 1)")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="for an operator in one type (default 300)")
    parser.add_argument("--resume", action="store_true", help="only what no earlier run has done")
    parser.add_argument("--again", action="store_true", help="with --resume: do what did not pass anew")
    parser.add_argument("--report", action="store_true", help="run nothing: sum up what earlier runs found")
    parser.add_argument("--partial", type=Path, default=PARTIAL, metavar="FILE", help="where results go as they come")
    parser.add_argument("--results", type=Path, default=RECORD, metavar="FILE", help="the results that this run is added to")
    parser.add_argument("--json", action="store_true", help="print what this run found as JSON")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if anything in this run differs from eager")
    parser.add_argument("--worker", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.sizes = [size == "dynamic" for size in options.sizes]
    return options


def sweep(todo: Sequence[Unit], found: Found, folder: Path, partial: TextIO, options: argparse.Namespace) -> None:
    """Check the missing samples of the units in worker processes. Add outcomes to ``found`` and to ``partial``."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()]
    waiting: queue.SimpleQueue[Unit] = queue.SimpleQueue()
    for unit in todo:
        waiting.put(unit)
    counts: Counter[str] = Counter()
    lock = threading.Lock()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("conformance", total=len(todo))

        def report(unit: Unit, total: int, outcomes: list[dict[str, str]]) -> None:
            with lock:
                found.add(str(unit), total, outcomes)
                if outcomes:
                    partial.write(json.dumps({"unit": str(unit), "total": total, "outcomes": outcomes}) + "\n")
                    partial.flush()
                counts.update(outcome["status"] for outcome in outcomes)
                for outcome in distinct(outcomes):
                    progress.console.print(f"{unit}, sample {outcome['sample']}: {line_of(outcome)}"[:300], markup=False)
                shown = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
                progress.update(task, advance=1, description=shown)

        threads = [
            threading.Thread(target=drive, args=(waiting, found, folder / str(n), report, options), daemon=True)
            for n in range(options.jobs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def line_of(outcome: Mapping[str, str]) -> str:
    peer = f" [torch: {outcome['peer']}]" if outcome["peer"] else ""
    return f"{outcome['status']}: {outcome['reason']}{peer}"


def distinct(outcomes: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """One failure of each kind for a unit, to show on the screen."""
    failed = [outcome for outcome in outcomes if outcome["status"] not in ("pass", "skipped")]
    return list({(outcome["status"], outcome["reason"][:60]): outcome for outcome in failed}.values())


def memory() -> str | None:
    """A folder in memory, if there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# ---------------------------------------------------------------- processes


def environment_in(folder: Path) -> dict[str, str]:
    """An environment with one thread and a state directory of its own.

    The cache is separate too, unless one is named.
    """
    cache = os.environ.get("AOTPACK_CACHE", f"{folder}/cache")
    return os.environ | {"AOTPACK_STATE": f"{folder}/state", "AOTPACK_CACHE": cache, "OMP_NUM_THREADS": "1"}


def in_fresh_process(folder: Path) -> dict[str, Any]:
    """Call the stored bundles in a process without the compiler. Returns their number and the differences."""
    command = [sys.executable, "-I", "-m", "devtools.conformance.fresh", str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment_in(folder), capture_output=True, text=True, check=False)
    if done.returncode:
        return {"bundles": 0, "wrong": {"process": f"ended with {done.returncode}: {done.stderr.strip()[-600:]}"}}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def drive(waiting: queue.SimpleQueue[Unit], found: Found, folder: Path, report: Any, options: argparse.Namespace) -> None:
    """Pass units to worker processes until none are left. A worker is replaced when needed."""
    worker: Worker | None = None
    left: list[Unit] = []
    while units := batch(waiting, left, SIDE_BY_SIDE if options.together > 1 else 1):
        known = {str(unit): found.names(str(unit)) for unit in units}
        outcomes: dict[str, list[dict[str, str]]] = {str(unit): [] for unit in units}
        tried: list[list[str]] = []
        done = False
        while not done:
            if worker is None or worker.units >= RECYCLED:
                if worker is not None:
                    worker.end()
                worker = Worker(folder, options)
            started = time.monotonic()
            done, died_of, reason = worker.do(units, known, outcomes, tried)
            totals = worker.totals
            if not done:
                worker = None
                if len(died_of) < 2:
                    unit, sample = died_of[0] if died_of else (str(units[0]), "all")
                    outcomes[unit].append({"sample": sample, "status": "crash", "reason": reason, "peer": ""})
                tried += died_of  # if several samples shared a bundle, each is checked alone next
                done = not died_of or time.monotonic() - started > options.limit * len(units)
        for one in units:
            report(one, totals.get(str(one), 0), outcomes[str(one)])
    if worker is not None:
        worker.end()


def batch(waiting: queue.SimpleQueue[Unit], left: list[Unit], size: int) -> list[Unit]:
    """The next units that may share bundles.

    A unit that was taken but does not fit goes to ``left`` for the next call.
    """
    taken, left[:] = [*left], []
    while len(taken) < size:
        try:
            unit = waiting.get_nowait()
        except queue.Empty:
            break
        if taken and (unit.database, unit.dynamic) != (taken[0].database, taken[0].dynamic):
            left.append(unit)
            break
        taken.append(unit)
    return taken


class Worker:
    """A process that checks samples. It reads units and writes outcomes, one a line. ``totals``: samples by unit."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "devtools.conformance", "--worker", str(folder), "--limit", str(options.limit)]
        command += ["--samples", str(options.samples)] if options.samples else []
        command += ["--together", str(options.together)]
        command += ["--values"] if options.values else []
        environment = environment_in(folder)
        self.limit = options.limit
        self.units = 0
        self.totals: dict[str, int] = {}
        self.log = (folder / "worker.log").open("a")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()  # it has imported torch and the databases, so time limits start now

    def do(
        self,
        units: Sequence[Unit],
        known: Mapping[str, Sequence[str]],
        outcomes: Mapping[str, list[dict[str, str]]],
        tried: Sequence[Sequence[str]],
    ) -> tuple[bool, list[list[str]], str]:
        """Append outcomes for the units' samples that have none yet and are not ``known`` from an earlier run.

        Samples in ``tried`` are built alone.

        Returns:
            False, units and names of the samples that the process died of, and how.
        """
        self.units += len(units)
        self.totals = {}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        current: list[list[str]] = []
        done = {unit: [*known[unit], *(outcome["sample"] for outcome in outcomes[unit])] for unit in outcomes}
        self.process.stdin.write(json.dumps({"units": [asdict(unit) for unit in units], "done": done, "tried": tried}) + "\n")
        self.process.stdin.flush()
        while True:
            timer = threading.Timer(2 * self.limit, self.process.kill)
            timer.start()
            line = self.process.stdout.readline()
            timer.cancel()
            if not line:
                code = self.process.wait()
                return (
                    False,
                    current,
                    f"the process ended with {code}" if code != -9 else f"not done after {2 * self.limit:.0f} s",
                )
            recorded = json.loads(line)
            if "end" in recorded:
                return True, [], ""
            if "total" in recorded:
                self.totals[recorded["unit"]] = recorded["total"]
            elif "begin" in recorded:
                current = recorded["begin"]
            else:
                outcomes[recorded.pop("unit")].append(recorded)

    def end(self) -> None:
        """Let the process finish."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


if __name__ == "__main__":
    main()

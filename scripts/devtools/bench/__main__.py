"""Measures aotpack against its peers. Each benchmark has a results file; scripts/bench/README.md explains them.

Every benchmark measures its contenders in turns in one run, and gives medians and ratios. The
ratios matter most.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from devtools.bench.runner import Bench, BenchError
from devtools.machine import provenance
from devtools.paths import RESULTS

SECTIONS = {
    "import": "imports",
    "start": "start",
    "step": "step",
    "networks": "networks",
    "alone": "alone",
    "overhead": "overhead",
    "optimizer": "optimizer",
    "whole_steps": "whole_steps",
    "first_update": "first_update",
    "memory": "memory",
    "live": "live",
    "build": "build",
    "share": "share",
    "goals": "goals",
    "weights": "weights",
    "variants": "variants",
    "recompute": "recompute",
    "scale": "scale",
    "depth": "depth",
    "xla": "xla",
    "xla_scan": "xla_scan",
}
"""Benchmark to its module, the most valuable first."""

console = Console(stderr=True, highlight=False, markup=False, width=None if sys.stderr.isatty() else 140)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=list(SECTIONS), default=[name for name in SECTIONS if name != "goals"], metavar="BENCHMARK"
    )
    parser.add_argument("--quick", action="store_true", help="small networks, few repetitions; nothing is written to results/")
    parser.add_argument("--no-pin", dest="pin", action="store_false", help="do not pin one-thread processes to a core")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work here and leave bundles and caches for the next run")
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="of benchmarks with a row for each: these")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="write results here instead of results/")
    parser.add_argument("--prepare", action="store_true", help="with --keep: build the bundles of `networks`, measure nothing")
    options = parser.parse_args()
    if options.prepare and not options.keep:
        parser.error("--prepare needs --keep")
    pin = options.pin and shutil.which("taskset") is not None
    with tempfile.TemporaryDirectory(prefix="aotpack-bench-") as temporary:
        work = options.keep.resolve() if options.keep else Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        bench = Bench(work, options.quick, pin, options.networks, results=options.results.resolve())
        try:
            bench.check_checkout()
            if options.prepare:
                return _prepare(bench)
            for name in options.only:
                _run(name, bench)
        except BenchError as error:
            sys.exit(f"bench: {error}")


def _prepare(bench: Bench) -> None:
    from devtools.bench.sections import networks

    failures = networks.prepare(bench)
    for name, failure in failures.items():
        console.print(f"{name}: {failure}")
    sys.exit(bool(failures))


def _run(name: str, bench: Bench) -> None:
    section = importlib.import_module(f"devtools.bench.sections.{SECTIONS[name]}")
    begin = time.perf_counter()
    with console.status(name):
        found = section.measure(bench)
    result = {**provenance(), "minutes": round((time.perf_counter() - begin) / 60, 1), "goal": section.GOAL, **found}
    text = json.dumps(result, indent=2) + "\n"
    if bench.quick:
        print(text, end="")
    else:
        bench.results.mkdir(exist_ok=True)
        (bench.results / f"{name}.json").write_text(text)
    console.print(f"{name}: {_summary(result)}")


def _summary(result: Mapping[str, Any]) -> str:
    ratios = ", ".join(f"{key} {value:.3g}" for key, value in result["ratios"].items())
    goal = "" if result["goal"] is None else f"goal {result['goal']:g}; "
    return f"{ratios} ({goal}load {result['load_average']}; {result['minutes']} min)"


if __name__ == "__main__":
    main()

"""Rows of the conformance table for GPUs, without one: each is compiled for two architectures, and run by ``simulator.py``.

The results of a run of all rows go to scripts/bench/results/cuda_without_gpu.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from conformance.table import CASES, XFAIL

from aotpack_loader.errors import BuildError
from devtools.harness import MismatchError, build, compare
from devtools.machine import provenance
from devtools.paths import RESULTS

RECORD = RESULTS / "cuda_without_gpu.json"
ARCHITECTURES = ("sm80", "sm90")
REASON = 400

Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="rows whose names have this in them; nothing is written")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth row")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    names = [case.name for case in CASES if re.search(asked.only, case.name)][:: asked.every]
    with tempfile.TemporaryDirectory(prefix="aotpack-cuda-") as folder:
        rows = _all(_compile, names, Path(folder), asked.processes)
        os.environ["TRITON_INTERPRET"] = "1"
        compiled = [name for name in names if rows[name]["status"] == "compiled"]
        rows |= _all(_run, compiled, Path(folder), asked.processes)
    counts = dict(sorted(Counter(row["status"] for row in rows.values()).items()))
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    if not asked.only:
        record = {**provenance(threads=1), "every": asked.every, "totals": counts, "rows": rows}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(1 if counts.keys() & {"wrong", "failed"} else 0)


def _all(step: Callable[[Path, str], Row], names: list[str], folder: Path, processes: int) -> dict[str, Row]:
    """What a step makes of each row, in processes of its own, each of which makes some rows."""
    found: dict[str, Row] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _start, max_tasks_per_child=40) as pool:
        for name, row in zip(names, pool.map(functools.partial(_caught, step, folder), names), strict=True):
            found[name] = row
            if row["status"] in ("failed", "wrong", "known"):
                print(f"{row['status']:8} {name}: {' '.join(row['reason'].split())[:300]}", flush=True)
    return found


def _start() -> None:
    import cuda.simulator  # noqa: F401 - before this process is copied

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def _caught(step: Callable[[Path, str], Row], folder: Path, name: str) -> Row:
    """What a step makes of a row, in a copy of this process, which a fault may end."""
    begun = time.perf_counter()
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            row = step(folder, name)
        except BaseException as error:
            row = {"status": "failed", "reason": f"{type(error).__name__}: {error}"[-REASON:]}
        os.write(writer, json.dumps(row).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as told:
        text = told.read()
    _, status = os.waitpid(child, 0)
    row = json.loads(text) if text else {"status": "failed", "reason": f"its process ended with status {status}"}
    return {**row, "seconds": f"{time.perf_counter() - begun:.1f}"}


def _place(folder: Path, name: str) -> Path:
    return folder / f"{[case.name for case in CASES].index(name)}"


def _compile(folder: Path, name: str) -> Row:
    """Build the row for both architectures, and check the code of each kernel."""
    from .simulator import sources_kept

    case = next(case for case in CASES if case.name == name)
    place = _place(folder, name)
    place.mkdir()
    try:
        with sources_kept() as sources:
            build(replace(case, targets=tuple(f"cuda:{each}" for each in ARCHITECTURES)), place / "case.aotpack")
    except BuildError as error:
        text = str(error)
        if "could not compile" in text:
            return {"status": "failed", "reason": text[:REASON]}
        return {"status": "refused for cuda" if "cuda target" in text else "refused", "reason": text[:REASON]}
    (place / "sources.json").write_text(json.dumps(sources))
    return {"status": "compiled", "reason": f"{len(sources)} kernels"}


def _run(folder: Path, name: str) -> Row:
    """Run the row's calls on the simulated GPU, and compare them with eager."""
    from .simulator import simulated

    case = next(case for case in CASES if case.name == name)
    place = _place(folder, name)
    sources = json.loads((place / "sources.json").read_text())
    with simulated(place, sources):
        try:
            compare(case, place / "case.aotpack", f"cuda:{ARCHITECTURES[0]}")
        except MismatchError as error:
            return {"status": "known" if name in XFAIL else "wrong", "reason": str(error)[:REASON]}
    return {"status": "as eager", "reason": f"{len(sources)} kernels"}


if __name__ == "__main__":
    main()

"""Every row of the conformance table on the second device (tests/second_device/rows.py), or on another one.

Results go to scripts/bench/results/conformance_device.json, and their sums to docs/guide/devices.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from conformance.table import CASES

from devtools.machine import provenance
from devtools.pages import replace
from devtools.paths import RESULTS, ROOT

from . import NAME, register, rows

RECORD = RESULTS / "conformance_device.json"
PAGE = ROOT / "docs" / "guide" / "devices.md"
REASON = 400
"""Characters of a reason that are kept."""

Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="rows whose names have this in them; nothing is written")
    parser.add_argument("--device", default=NAME, help="another device that this torch has, as cuda; nothing is written")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    names = [case.name for case in CASES if re.search(asked.only, case.name)]
    found: dict[str, Row] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.processes, spawn, _start, [asked.device]) as pool:
        for name, row in zip(names, pool.map(functools.partial(_run, asked.device), names), strict=True):
            found[name] = row
            if row["status"] in ("known", "wrong"):
                print(f"{row['status']:8} {name}: {' '.join(row['reason'].split())[:300]}", flush=True)
    counts = Counter(row["status"] for row in found.values())
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    if not asked.only and asked.device == NAME:
        RECORD.write_text(
            json.dumps({**provenance(threads=1), "totals": dict(sorted(counts.items())), "rows": found}, indent=1) + "\n"
        )
        replace(PAGE, "conformance-device", _summary(found))
    sys.exit(1 if counts["wrong"] else 0)


def _start(device: str) -> None:
    if device == NAME:
        register()
    torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def _run(device: str, name: str) -> Row:
    case = next(case for case in CASES if case.name == name)
    with tempfile.TemporaryDirectory(prefix="aotpack-row-") as folder:
        try:
            outcome = rows.run(case, Path(folder), torch.device(device, 0))
        except Exception:
            outcome = rows.Outcome("wrong", traceback.format_exc()[-REASON:])
    return {"status": outcome.status, "reason": outcome.reason[:REASON]}


def _summary(found: Mapping[str, Row]) -> str:
    """How many rows ended in each way, and which differ."""
    elsewhere = [row for row in found.values() if row["status"] == "pass" and row["reason"]]
    at_load = [row for row in found.values() if row["status"] == "refused" and row["reason"].startswith("at load")]
    counts = Counter(row["status"] for row in found.values())
    known = {name: row["reason"] for name, row in found.items() if row["status"] == "known"}
    lines = [
        "| rows | |",
        "| ---: | --- |",
        f"| {counts['pass'] - len(elsewhere)} | as eager on the CPU |",
        f"| {len(elsewhere)} | as eager on the device, which differs from the CPU |",
        f"| {counts['refused'] - len(at_load)} | refused by the build, as for the CPU |",
        f"| {len(at_load)} | refused by the load: `as_strided` with strides that vary |",
        f"| {counts['known']} | differ for a known reason |",
        f"| {counts['wrong']} | wrong |",
        "",
        *(f"- *{name}*: {reason}" for name, reason in known.items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""Runs native code of some releases of torch on others. Results: scripts/bench/results/torch-matrix.json.

Each build and each load is a process of its own. If it ends during a case, that case has crashed,
and another process does the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..machine import provenance
from ..paths import RESULTS, ROOT
from .cases import NAMES

OUTPUT = RESULTS / "torch-matrix.json"
RELEASES = ("2.11.0", "2.13.0", "2.14.1", "2.15.0")
WORK = Path.home() / ".cache" / "aotpack-torch-matrix"

Row = dict[str, Any]
Rows = dict[str, Row]


def main() -> None:
    """Run the chosen part of the matrix and keep the other parts of an earlier run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--builds", nargs="+", default=RELEASES, metavar="TORCH", help="releases that build")
    parser.add_argument("--loads", nargs="+", default=RELEASES, metavar="TORCH", help="releases that load")
    parser.add_argument("--folder", type=Path, default=WORK, help="where bundles are; those that are there are not built again")
    parser.add_argument("--no-build", action="store_true", help="run only what an earlier run built")
    parser.add_argument("--out", type=Path, default=OUTPUT)
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"builds": {}, "loads": {}}
    names = [f"{hashlib.sha256(name.encode()).hexdigest()[:12]}:{name}" for name in NAMES]
    for built in given.builds:
        folder = given.folder / built
        folder.mkdir(parents=True, exist_ok=True)
        if given.no_build:
            rows = {name.partition(":")[2]: {"result": "built"} for name in names if _is_built(folder, name)}
        else:
            rows = run(built, "build", folder, names)
        found["builds"][built] = rows
        _say(f"built on {built}", rows)
        present = [name for name in names if rows.get(name.partition(":")[2], {}).get("result") == "built"]
        for loaded in given.loads:
            rows = run(loaded, "load", folder, present)
            found["loads"].setdefault(built, {})[loaded] = rows
            _say(f"built on {built}, run on {loaded}", rows)
            found |= provenance(threads=1)
            given.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def run(release: str, what: str, folder: Path, names: Sequence[str]) -> Rows:
    """What became of each case. A process that ends during one is followed by another for the rest."""
    rows: Rows = {}
    remaining = list(names)
    while remaining:
        command = ["nice", "-n", "10", python_of(release), "-m", "devtools.torch_matrix.worker", what, str(folder), *remaining]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment(release), cwd=ROOT)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
        rows |= {line.pop("case"): line for line in lines if "case" in line}
        remaining = [item for item in names if item.partition(":")[2] not in rows]
        started = [line["started"] for line in lines if "started" in line]
        if remaining and (not started or started[-1] in rows):
            raise SystemExit(f"torch {release} could not {what}:\n{done.stderr[-3000:]}")
        if remaining:
            last = (done.stderr.strip().splitlines() or [""])[-1]
            rows[started[-1]] = {"result": "crashed", "reason": f"exit status {done.returncode}: {last}"}
            remaining.pop(0)
    return rows


def _is_built(folder: Path, name: str) -> bool:
    key = name.partition(":")[0]
    return all((folder / f"{key}.{kind}").exists() for kind in ("aotpack", "pt"))


def python_of(release: str) -> str:
    """The Python that has this release of torch. scripts/setup-torch makes its environment."""
    if torch.__version__.split("+")[0] == release:
        return sys.executable
    made = subprocess.run(["scripts/setup-torch", release], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return made.stdout.strip().splitlines()[-1]


def _environment(release: str) -> dict[str, str]:
    """One thread; the tests' modules can be imported; code caches are separate for each release."""
    cache = WORK / f"cache-{release}"
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(str(ROOT / one) for one in ("tests", "", "loader", "scripts")),
        "AOTPACK_CACHE": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
    }


def _say(what: str, rows: Rows) -> None:
    counts = Counter(row["result"] for row in rows.values())
    print(f"{what}: {', '.join(f'{count} {result}' for result, count in counts.most_common())}", flush=True)
    for name, row in rows.items():
        if row["result"] in ("crashed", "differs", "refused", "not built"):
            print(f"    {row['result']}: {name}: {row['reason']}", flush=True)


if __name__ == "__main__":
    main()

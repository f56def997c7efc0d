"""scripts/conformance itself: a sweep of three operators, its workers, its fresh process and its results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from conftest import ROOT


def test_a_sweep_of_three_operators(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "conformance.py"), "--databases", "op_db", "--dtypes", "float32"]
    options = ["--ops", "sin", "addmm", "equal", "--samples", "2", "--partial", str(tmp_path / "partial.jsonl")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads(done.stdout)
    assert results["fresh_process"] == {"bundles": 12, "wrong": {}}
    assert results["operators"] == 4  # addmm has a decomposed variant
    assert list(results["failures"]) == ["op_db/equal"]
    (refused,) = results["failures"]["op_db/equal"]
    assert refused["status"] == "refused"
    assert "aten.equal.default" in refused["reason"]
    assert refused["aot_function"].startswith("raises DataDependent")
    assert refused["samples"] == {"float32 static": 2, "float32 dynamic": 2}

    before = _outcomes(tmp_path / "partial.jsonl")
    assert {(unit, name) for unit, name, _ in before} >= {("op_db/sin/float32/static", name) for name in ("0", "0 in-place")}
    assert results["totals"]["total"] == len(before)
    more = [*command, *options, "--resume", "--samples", "3"]
    again = subprocess.run(more, capture_output=True, text=True, timeout=600, check=False)
    after = _outcomes(tmp_path / "partial.jsonl")
    assert after[: len(before)] == before
    assert len(after) == len({(unit, name) for unit, name, _ in after}) > len(before)  # nothing was done twice
    assert json.loads(again.stdout)["totals"]["total"] == len(after)


def _outcomes(partial: Path) -> list[tuple[str, str, str]]:
    """Unit, sample and status, in the order in which they were found."""
    lines = [json.loads(line) for line in partial.read_text().splitlines()]
    return [(line["unit"], one["sample"], one["status"]) for line in lines if "unit" in line for one in line["outcomes"]]

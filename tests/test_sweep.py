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
    operators = results["operators"]
    assert operators["op_db/sin"] == {"counts": {"pass": 4}}  # it has one sample, and an in-place variant
    assert operators["op_db/equal"]["counts"] == {"refused": 4}
    assert "aten.equal.default" in operators["op_db/equal"]["failures"][0]["reason"]
    assert operators["op_db/equal"]["failures"][0]["aot_function"].startswith("raises DataDependent")
    assert results["totals"]["total"] == sum(sum(line["counts"].values()) for line in operators.values())
    units = [json.loads(line)["unit"] for line in (tmp_path / "partial.jsonl").read_text().splitlines()]
    assert sorted(units) == sorted(f"{name}/float32/{sizes}" for name in operators for sizes in ("static", "dynamic"))

    again = subprocess.run([*command, *options, "--resume"], capture_output=True, text=True, timeout=600, check=False)
    assert json.loads(again.stdout)["rows"] == results["rows"]
    assert (tmp_path / "partial.jsonl").read_text().count("\n") == len(units)

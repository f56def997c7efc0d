"""scripts/conformance itself: a sweep of three operators, its workers, its fresh process and its results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "bench")]

from conformance_found import Found  # noqa: E402
from conformance_report import STATUSES, markdown, summary, with_rows_of  # noqa: E402


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


def test_rows_that_a_run_leaves_out_are_kept() -> None:
    """A sweep of dynamic sizes alone keeps what is known of static ones, with the day, and replaces its own."""
    counts = dict.fromkeys((*STATUSES, "skipped", "left"), 0)
    old = counts | {"refused": 2, "pass": 1, "total": 3}
    refused = {"status": "refused", "reason": "old", "samples": {"float32 dynamic": 2, "float32 static": 2}}
    earlier = {
        "date": "2026-01-02 03:04 UTC",
        "versions": {},
        "operators": 9,
        "fresh_process": {"bundles": 5, "wrong": {}},
        "rows": dict.fromkeys(("op_db/float32/dynamic", "op_db/float32/static"), old),
        "failures": {"op_db/sin": [refused]},
    }
    found = Found()
    found.add("op_db/sin/float32/dynamic", 4, [{"sample": "0", "status": "pass", "reason": "", "aot": ""}])
    results = with_rows_of(summary(found), earlier)
    assert results["rows"]["op_db/float32/static"] == old | {"left": 1}  # there are as many as with dynamic sizes
    assert results["rows"]["op_db/float32/dynamic"] == counts | {"pass": 1, "total": 1, "left": 3}
    assert results["totals"] == counts | {"pass": 2, "refused": 2, "total": 4, "left": 4}
    assert [failure["samples"] for failure in results["failures"]["op_db/sin"]] == [{"float32 static": 2}]
    assert "Static rows are of 2026-01-02." in markdown(results)
    assert "called 5 of the bundles" in markdown(results)

    later = with_rows_of(summary(found), results)
    assert later["rows"] == results["rows"]
    assert [run["date"] for run in later["earlier"]] == [earlier["date"]]


def _outcomes(partial: Path) -> list[tuple[str, str, str]]:
    """Unit, sample and status, in the order in which they were found."""
    lines = [json.loads(line) for line in partial.read_text().splitlines()]
    return [(line["unit"], one["sample"], one["status"]) for line in lines if "unit" in line for one in line["outcomes"]]

"""The benchmarks: what they wrap and what they write is there."""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import ROOT, FreshProcess

from devtools.bench import overview, report, runner, tables
from devtools.bench.__main__ import SECTIONS
from devtools.bench.processes import clock
from devtools.bench.processes.batches import repeated
from devtools.bench.sections import goals
from devtools.paths import RESULTS

WRAPPED = """
import json
import aotpack_loader.devices.aoti, aotpack_loader.opening.documents
from devtools.bench.processes import overhead, phases
from devtools.bench.processes.clock import Clock
print(json.dumps([*Clock(phases.PHASES).seconds, *Clock(overhead.PARTS).seconds]))
"""


def test_the_functions_whose_time_is_measured_exist(fresh_process: FreshProcess) -> None:
    assert {"open", "dlopen", "compiled code"} <= set(fresh_process(WRAPPED, from_nothing=True))


def test_a_clock_counts_what_a_function_spends_in_another_for_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def inner() -> None:
        time.sleep(0.02)

    def outer() -> None:
        measured.inner()

    measured: Any = SimpleNamespace(inner=inner, outer=outer)
    monkeypatch.setitem(sys.modules, "measured", measured)
    found = clock.Clock({"inner": [("measured", "inner")], "outer": [("measured", "outer")]})
    measured.outer()
    assert found.seconds["inner"] >= 0.02
    assert found.seconds["outer"] < found.seconds["inner"]


def test_a_clock_wants_functions_that_exist() -> None:
    with pytest.raises(KeyError):
        clock.Clock({"gone": [("json", "no_such_function")]})


@pytest.mark.parametrize("batch", [0, 1, 5])
def test_inputs_in_another_batch_size(batch: int) -> None:
    inputs = ((torch.arange(3), {"y": torch.ones(2, 4)}), {})
    (x, inner), rest = repeated(inputs, batch)
    assert x.tolist() == ([0, 1, 2] if batch == 0 else [0] * batch)
    assert inner["y"].shape == (batch or 2, 4)
    assert rest == {}


def test_every_benchmark_has_a_table_on_one_page() -> None:
    assert {name for sections in tables.PAGES.values() for name in sections} == SECTIONS.keys() - {"import"}
    for path, sections in tables.PAGES.items():
        page = (ROOT / "docs" / path).read_text()
        for name in sections:
            assert page.count(f"<!-- {name}:begin -->") == page.count(f"<!-- {name}:end -->") == 1
    assert (ROOT / "docs" / "performance.md").read_text().count("<!-- overview:begin -->") == 1
    assert (ROOT / "README.md").read_text().count("<!-- bench:begin -->") == 1
    for module in SECTIONS.values():
        assert find_spec(f"devtools.bench.sections.{module}")


def test_the_overview_has_the_median_and_the_largest_ratio_of_all_networks() -> None:
    ratios = {"lstm, one thread": 0.5, "gru, one thread": 0.7, "text, one thread": 0.9, "lstm, all threads": 0.25}
    provenance = {"machine": {"cpu": "a CPU", "cores": 2}, "versions": {"torch": "2.13.0"}, "date": "2026-11-27 08:24 UTC"}
    rows = overview.overview({"networks": {**provenance, "goal": 1.0, "ratios": ratios}}).splitlines()
    assert rows[2] == "| a step, 3 kinds of networks, one thread, median |  |  |  | 0.70 times | ≤ 1 |"
    assert rows[3] == "| a step, 3 kinds of networks, one thread, largest |  |  |  | 0.90 times | ≤ 1 |"
    assert rows[5] == "| a step, 3 kinds of networks, all threads, largest |  |  |  | 0.25 times | ≤ 1 |"


def test_the_row_of_a_network_beside_the_better_peer() -> None:
    start = {
        "eager, first step": 0.02,
        "bundle, import, load and first step": 0.03,
        "bundle, first step": 0.01,
        "bundle, a step": 3e-3,
    }
    tensors = {"eager": 3e6, "compile": 2e6, "bundle": 1e6}
    resident = {"eager": 4e6, "compile": 5e6, "bundle": 3e6}
    build = {"compile": 40.0, "bundle": 20.0}
    touches = {"read": 1e-3, "write": 4e-3}
    row_of = {"start_seconds": start, "first_touch_seconds": touches, "build_seconds": build}
    row_of |= {"tensor_bytes": tensors, "peak_bytes": resident}
    result = goals.result_of({"digits": row_of})
    assert result["ratios"] == {"start, digits": pytest.approx(1.5), "memory, digits": 0.5, "build, digits": 0.5}
    row = tables.goals(result).splitlines()[-1]
    assert row == (
        "| digits | 20 ms | 30 ms | 1.50 times | 10 ms | 3 ms | 5 ms | 3 MB | 2 MB | 1 MB | 0.50 times | 0.75 times "
        "| 40 s | 20 s | 0.50 times |  |"
    )


def test_rows_say_when_they_were_measured() -> None:
    """Results of partial runs have rows of several dates."""
    for name in ("networks", "goals"):
        result = json.loads((RESULTS / f"{name}.json").read_text())
        rows = result.get("cases") or result["networks"]
        assert all(row["measured"]["date"] and row["measured"]["torch"] for row in rows.values())
        assert "2026-" in getattr(tables, name)(result).splitlines()[-1].split("|")[-2]


def test_a_partial_run_of_the_goals_keeps_the_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"start_seconds": {"eager, first step": 1.0, "bundle, import, load and first step": 1.0}}
    parts |= {"tensor_bytes": {"eager": 1.0, "compile": 1.0, "bundle": 1.0}, "build_seconds": {"compile": 1.0, "bundle": 1.0}}
    bench = runner.Bench(tmp_path, quick=False, pin=False, networks=["gpt"], results=tmp_path)
    (tmp_path / "goals.json").write_text(json.dumps({"networks": {"digits": parts}}))
    monkeypatch.setattr(goals, "_measured", lambda *_: {**parts, "build_seconds": {"compile": 2.0, "bundle": 1.0}})
    monkeypatch.setattr(runner.Bench, "build", lambda *_: None)
    monkeypatch.setattr(runner.Bench, "start", lambda *_: None)
    found = goals.measure(bench)
    assert (found["ratios"]["build, digits"], found["ratios"]["build, gpt"]) == (1.0, 0.5)
    assert list(json.loads((tmp_path / "goals.json").read_text())["networks"]) == ["digits", "gpt"]


def test_kept_bundles_of_another_compiler_are_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []

    def run(bench: runner.Bench, *words: Any, **_: Any) -> str:
        built.append(words[words.index("-o") + 1])
        built[-1].write_bytes(b"a bundle")
        return ""

    monkeypatch.setattr(runner.Bench, "python", run)
    bench, case = runner.Bench(tmp_path, quick=False, pin=False), runner.network("tiny")
    for _ in range(2):
        bench.bundle(case, "--target", "cpu")
    assert len(built) == 1
    monkeypatch.setattr(runner, "compiler_revision", lambda: "another")
    for _ in range(2):
        bench.bundle(case, "--target", "cpu")
    assert built == [tmp_path / "tiny-target-cpu.aotpack"] * 2


def test_measured_processes_run_this_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result names the checkout's revision, so code from elsewhere must not be measured."""
    bench = runner.Bench(tmp_path, quick=False, pin=False)
    bench.check_checkout()
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    with pytest.raises(runner.BenchError, match=rf"aotpack/__init__\.py, which is not in {tmp_path}\. Run scripts/setup"):
        bench.check_checkout()


def test_a_report_replaces_what_is_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a:begin -->\nold\n<!-- a:end -->\n<!-- b:begin --><!-- b:end -->\n")
    report.replace(page, "a", "new")
    assert page.read_text() == "before\n<!-- a:begin -->\nnew\n<!-- a:end -->\n<!-- b:begin --><!-- b:end -->\n"
    with pytest.raises(SystemExit, match="c:begin"):
        report.replace(page, "c", "new")

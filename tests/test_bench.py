"""The benchmarks: what they wrap and what they write is there."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import FreshProcess

BENCH = Path(__file__).resolve().parent.parent / "scripts" / "bench"
ROOT = BENCH.parent.parent

WRAPPED = """
import sys
sys.path[:0] = sys.argv[1:]
import aotpack_loader.devices.aoti, aotpack_loader.loading
import overhead, phases
from clock import Clock
import json
print(json.dumps([*Clock(phases.PHASES).seconds, *Clock(overhead.PARTS).seconds]))
"""


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH / "processes"))
    monkeypatch.syspath_prepend(str(BENCH))


def test_the_functions_whose_time_is_measured_exist(fresh_process: FreshProcess) -> None:
    assert {"open", "dlopen", "compiled code"} <= set(fresh_process(WRAPPED, BENCH / "processes", BENCH))


def test_a_clock_counts_what_a_function_spends_in_another_for_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import clock

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
    import clock

    with pytest.raises(KeyError):
        clock.Clock({"gone": [("json", "no_such_function")]})


@pytest.mark.parametrize("batch", [0, 1, 5])
def test_inputs_in_another_batch_size(batch: int) -> None:
    from batches import repeated

    inputs = ((torch.arange(3), {"y": torch.ones(2, 4)}), {})
    (x, inner), rest = repeated(inputs, batch)
    assert x.tolist() == ([0, 1, 2] if batch == 0 else [0] * batch)
    assert inner["y"].shape == (batch or 2, 4)
    assert rest == {}


def test_every_benchmark_has_its_place_on_the_page() -> None:
    import run
    import tables

    assert {name for sections in tables.PAGES.values() for name in sections} == run.SECTIONS.keys() - {"import"}
    for path, sections in tables.PAGES.items():
        page = (ROOT / "docs" / path).read_text()
        for name in sections:
            assert page.count(f"<!-- {name}:begin -->") == page.count(f"<!-- {name}:end -->") == 1
    assert (ROOT / "docs" / "performance.md").read_text().count("<!-- overview:begin -->") == 1
    assert (ROOT / "README.md").read_text().count("<!-- bench:begin -->") == 1
    for module in run.SECTIONS.values():
        assert (BENCH / "sections" / f"{module}.py").exists()


def test_a_report_replaces_what_is_between_its_marks(tmp_path: Path) -> None:
    import report

    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a:begin -->\nold\n<!-- a:end -->\n<!-- b:begin --><!-- b:end -->\n")
    report.replace(page, "a", "new")
    assert page.read_text() == "before\n<!-- a:begin -->\nnew\n<!-- a:end -->\n<!-- b:begin --><!-- b:end -->\n"
    with pytest.raises(SystemExit, match="c:begin"):
        report.replace(page, "c", "new")

"""The pages about the fixes are what the register, the reports' programs and their results say."""

from __future__ import annotations

import pytest
from support.selection import nightly

from aotpack._torch.fixes.entries import FIXES
from aotpack._torch.fixes.register import Fix
from devtools.torch_fixes import programs, reports, runs

LINES = 18
"""The most lines of a report's program."""


def test_the_pages_are_up_to_date() -> None:
    for file, text in reports.tables().items():
        assert file.read_text() == text, f"{file.name}: run scripts/torch-fixes docs"
    assert set(programs.REPORTS.glob("*.py")) == {programs.path_of(fix.id) for fix in FIXES}


@pytest.mark.parametrize("fix", [pytest.param(fix, id=fix.id) for fix in FIXES])
def test_a_report_is_ready(fix: Fix) -> None:
    """It has a title, and a short program without aotpack that was seen to show the fault; or it says why not."""
    report = programs.report_of(fix.id)
    assert reports.pages()[fix.id].startswith(f"# {report.title}\n")
    assert "aotpack" not in report.program
    assert sum(map(bool, report.program.splitlines())) <= LINES
    assert bool(reports.shown_on(fix)) != reports.explained(fix), "run scripts/torch-fixes run"


RUN = {"fake-strides-of-views", "fake-kernels-without-sizes"}
"""Programs of a few seconds; ``scripts/test nightly`` runs all of them."""


@pytest.mark.parametrize("fix", [pytest.param(fix, id=fix.id) for fix in FIXES])
def test_a_program_shows_what_its_page_says(fix: Fix) -> None:
    if fix.id not in RUN and not nightly():
        pytest.skip("scripts/test nightly runs it")
    report = programs.report_of(fix.id)
    known = reports.results(fix.id, report).get(runs.RELEASE)
    if known is None:
        pytest.skip("it was not run with this torch")
    shown = programs.show(report.program)
    assert (shown.differs, shown.expected) == (known["expected"] != known["seen"], known["expected"])

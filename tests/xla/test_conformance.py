"""Rows of the conformance table on ``xla:cpu``: a commit runs one in 48 of those that were run before, nightly all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conformance.table import CASES
from support.selection import nightly

from . import rows, sweep

RUN = sweep.read()
PASSED = {name for name, row in RUN.items() if row["status"] == "pass"}
"""Rows that passed when they were run (scripts/conformance-xla)."""
WRONG = {name for name, row in RUN.items() if row["status"] == "wrong"}
"""Rows that are wrong, and expected to be: docs/xla.md names their causes. One that passes has to be run again."""
REFUSED = {
    "subclasses: a part is returned": "is in the memory of an argument",
    "shapes: unbacked, views": "varies from call to call",
    "as_strided: slices, portable": "has a size that varies from call to call",
    "gradient writes: a gradient of two inputs, trace": "backward writes to a gradient that is also used elsewhere",
    "gradient writes: a gradient of two inputs, in a hook, trace": "a hook that writes to a gradient that is also used elsewhere",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.turns(48, touched=lambda: False)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(case.name, marks=[pytest.mark.xfail(strict=True)] if case.name in WRONG else [])
        for case in CASES
        if nightly() or case.name in RUN
    ],
)
def test_no_row_is_wrong(name: str, tmp_path: Path) -> None:
    """Values, gradients, mutations, who is whom, who shares memory: as in eager, or refused. What passed once passes."""
    outcome = rows.run(rows.named(CASES, name), tmp_path)
    assert outcome.status != "wrong", outcome.reason
    assert outcome.status == "pass" or name not in PASSED - rows.KNOWN.keys(), outcome.reason


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    """With a reason, and before anything is changed."""
    outcome = rows.run(rows.named(CASES, name), tmp_path)
    assert outcome.status == "refused"
    assert re.search(REFUSED[name], outcome.reason, re.DOTALL)


@pytest.mark.filterwarnings("ignore")
def test_a_known_difference_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "outputs: multi-output views, unbind, in place afterwards (eager raises)"
    known = rows.KNOWN[name]
    assert rows.run(rows.named(CASES, name), tmp_path) == rows.Outcome("known", known.cause)
    monkeypatch.setitem(rows.KNOWN, name, rows.Known(known.cause, "structure: of another kind"))
    assert rows.run(rows.named(CASES, name), tmp_path).status == "wrong"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, known in rows.KNOWN.items() if known.rounding])
def test_roundings_differ_within_their_bound(name: str, tmp_path: Path) -> None:
    """On processors that round as eager does, there is no difference."""
    outcome = rows.run(rows.named(CASES, name), tmp_path)
    assert outcome in (rows.Outcome("pass"), rows.Outcome("known", rows.KNOWN[name].cause))

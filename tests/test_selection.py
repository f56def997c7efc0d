"""Rows of the conformance table are left out only if nothing that they entered has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import selection

BEFORE = '''
LIMIT = 3

class A:
    """A class."""
    size = 1
    def method(self):
        """Says what."""
        def inner():
            return 2
        return inner()

def other():
    return 1
'''


def changed(new: str) -> set[str]:
    old, now = selection._hashes_of(BEFORE), selection._hashes_of(new)
    return {name for name in old.keys() | now.keys() if old.get(name) != now.get(name)}


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("return 2", "return 3", {"A.method"}),
        ("return 1", "return 1 + 0", {"other"}),
        ("return 1", "return 1  # one", set()),
        ("Says what.", "Says how.", set()),
        ("size = 1", "size = 2", {"<module>"}),
        ("LIMIT = 3", "LIMIT = 4", {"<module>"}),
        ("def other", "def another", {"other", "another"}),
    ],
)
def test_what_counts_as_a_change(old: str, new: str, found: set[str]) -> None:
    assert changed(BEFORE.replace(old, new)) == found


def entered_by_the_row() -> int:
    return 1


@pytest.fixture(autouse=True)
def every_change_is_due(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "turn" not in request.node.name:
        monkeypatch.setattr(selection, "is_due", lambda name, parts=6: True)


def test_a_row_is_left_out_until_a_function_that_it_entered_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = selection.Entered(tmp_path)
    assert not entered.may_wait("row")
    with entered.noting("row"):
        entered_by_the_row()
    assert entered.may_wait("row")
    now = {**selection._hashes("tests/test_selection.py"), "entered_by_the_row": "another"}
    monkeypatch.setattr(selection, "_hashes", lambda file: now)
    assert not entered.may_wait("row")


def test_a_row_that_fails_runs_again(tmp_path: Path) -> None:
    entered = selection.Entered(tmp_path)
    with entered.noting("row"):
        entered_by_the_row()
    with pytest.raises(ZeroDivisionError), entered.noting("row"):
        _ = 1 / 0
    assert not entered.may_wait("row")


def test_every_row_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: set[str] = set()
    for commit in range(60):
        monkeypatch.setattr(selection, "_commit", lambda commit=commit: str(commit))
        now = {f"row {i}" for i in range(60) if selection.is_due(f"row {i}")}
        assert len(now) < 30
        ran |= now
    assert len(ran) == 60

"""Which rows of the conformance table a commit runs."""

from __future__ import annotations

import json
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


def entered_by_many_rows() -> int:
    return 2


@pytest.fixture
def entered(tmp_path: Path) -> selection.Entered:
    """Notes of 50 rows that enter another function, at a second run on this machine."""
    (tmp_path / "notes").mkdir()
    made = selection.Entered(tmp_path / "notes")
    for i in range(50):
        with made.noting(f"common {i}"):
            entered_by_many_rows()
    return made


def with_a_change_of(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = {**selection._hashes("tests/test_selection.py"), function: "another"}
    monkeypatch.setattr(selection, "_hashes", lambda file: now)


def test_a_row_is_left_out_until_a_function_that_it_entered_changes(
    entered: selection.Entered, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert entered.is_touched("row")  # it is new
    with entered.noting("row"):
        entered_by_the_row()
    assert not selection.Entered(entered._folder).is_touched("row")
    with_a_change_of("entered_by_the_row", monkeypatch)
    assert selection.Entered(entered._folder).is_touched("row")
    assert not selection.Entered(entered._folder).is_touched("common 1")


def test_functions_that_many_rows_enter_are_left_to_the_turns(
    entered: selection.Entered, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_change_of("entered_by_many_rows", monkeypatch)
    assert not entered.is_touched("common 1")


def test_on_a_new_machine_nothing_is_known_to_be_touched(tmp_path: Path) -> None:
    assert not selection.Entered(tmp_path / "notes").is_touched("row")
    later = selection.Entered(tmp_path / "notes")
    assert not later.is_touched("row")
    assert later.is_touched("added later")


def test_a_row_that_fails_runs_again(entered: selection.Entered) -> None:
    with entered.noting("row"):
        entered_by_the_row()
    with pytest.raises(ZeroDivisionError), entered.noting("row"):
        _ = 1 / 0
    assert entered.is_touched("row")


def test_every_row_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_TESTS", "commit")
    ran: set[str] = set()
    for commit in range(60):
        monkeypatch.setattr(selection, "_commit", lambda commit=commit: str(commit))
        now = {f"row {i}" for i in range(60) if selection.is_due(f"row {i}", 6)}
        assert len(now) < 30
        ran |= now
    assert len(ran) == 60


@pytest.mark.parametrize("run", ["nightly", None])
def test_other_runs_leave_nothing_out(run: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AOTPACK_TESTS", raising=False) if run is None else monkeypatch.setenv("AOTPACK_TESTS", run)
    assert all(selection.is_due(f"row {i}", 6) for i in range(60))


def test_a_test_of_many_seconds_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_TESTS", "commit")
    monkeypatch.setattr(selection, "_seconds", lambda: {"slow": 10})
    due = {"slow": 0, "quick": 0}
    for commit in range(300):
        monkeypatch.setattr(selection, "_commit", lambda commit=commit: str(commit))
        for test in due:
            due[test] += selection.is_due(test)
    assert due["quick"] == 300
    assert 5 < due["slow"] < 30


def report(test: str, seconds: float) -> pytest.TestReport:
    return pytest.TestReport(test, (test, None, ""), {}, "passed", None, "call", duration=seconds)


def test_nightly_measures_the_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_TESTS", "nightly")
    monkeypatch.setattr(selection, "_SECONDS", tmp_path / "seconds.json")
    (tmp_path / "seconds.json").write_text('{"a::gone": 5, "b::of another run": 4}')
    selection.note_run([report("a::slow", 1.0), report("a::quick", 1.0), report("a::slow", 1.6)], passed=False)
    assert json.loads((tmp_path / "seconds.json").read_text()) == {"a::slow": 3, "b::of another run": 4}


def test_a_file_changes_until_a_run_with_it_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_TESTS", "commit")
    monkeypatch.setenv("AOTPACK_TEST_CACHE", str(tmp_path))
    file = "tests/test_selection.py"
    ran = [report(f"{file}::test", 1.0)]
    assert not selection.has_changed(file)  # a new machine knows of no change
    selection.note_run(ran, passed=True)
    assert not selection.has_changed(file)
    selection.note_run([], passed=True)  # a run of other files
    assert not selection.has_changed("tests/test_docs.py")
    with_a_change_of("report", monkeypatch)
    selection.note_run(ran, passed=False)
    assert selection.has_changed(file)
    selection.note_run(ran, passed=True)
    assert not selection.has_changed(file)


class Report:
    skipped = False

    def __init__(self, nodeid: str, duration: float) -> None:
        self.nodeid, self.duration = nodeid, duration


def test_a_test_takes_turns_by_its_last_run_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_TESTS", "commit")
    monkeypatch.setenv("AOTPACK_TEST_CACHE", str(tmp_path))
    selection._seconds.cache_clear()
    selection.note_run(
        [Report("tests/a.py::slow", 30), Report("tests/a.py::slow", 20), Report("tests/a.py::fast", 0.1)], passed=False
    )  # type: ignore[list-item]
    selection._seconds.cache_clear()
    try:
        assert selection._seconds()["tests/a.py::slow"] == 50
        assert "tests/a.py::fast" not in selection._seconds()
        assert not (tmp_path / "files.json").exists()
    finally:
        selection._seconds.cache_clear()

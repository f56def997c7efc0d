"""docs/torch-versions.md says what the stored results say, and nothing that did not run counts as run."""

from __future__ import annotations

import json
from pathlib import Path

from devtools.releases.groups import GROUPS
from devtools.releases.outcomes import STARTED, read
from devtools.releases.page import PAGE, page, stored
from devtools.releases.run import corrected, counts, forget_started


def test_the_page_is_made_from_the_stored_results() -> None:
    assert stored()
    assert PAGE.read_text() == page(stored()), "run scripts/test-torch page"


def test_stored_groups_are_known() -> None:
    names = {group.name for group in GROUPS}
    assert len(names) == len(GROUPS)
    for result in stored():
        assert result["groups"].keys() <= names
        for group in result["groups"].values():
            assert len(group["failures"]) == group["failed"]


def test_what_did_not_run_is_shown() -> None:
    (result, *_) = stored()
    found = page([{**result, "groups": {"table": {**PARTIAL, "date": "2026-11-24 00:00 UTC"}}}])
    assert "| 2 passed, **1 failed** (4 of 9 ran) |" in found
    assert "`c`" in found
    assert "| Frozen vectors of the format | not run |" in found


PARTIAL = counts({"total": "9", "a": "passed", "b": "passed", "c": "failed", "d": "skipped"})


def test_a_test_that_ended_its_process_has_failed() -> None:
    assert counts({"total": "2", "a": "passed", "b": STARTED})["failures"] == ["b"]


def test_a_test_that_was_stopped_runs_again(tmp_path: Path) -> None:
    """Each test has a line when it starts, and another when it ends."""
    outcomes = tmp_path / "group.jsonl"
    lines = [("total", "3"), ("a", STARTED), ("a", "passed"), ("b", STARTED)]
    outcomes.write_text("".join(json.dumps({"test": test, "outcome": outcome}) + "\n" for test, outcome in lines))
    forget_started(outcomes)
    assert read(outcomes) == {"total": "3", "a": "passed"}


def test_another_run_of_failed_tests_corrects_a_group() -> None:
    known = {"total": 9, "passed": 6, "failed": 2, "skipped": 1, "failures": ["c", "d"], "date": "2026-11-24 00:00 UTC"}
    found = corrected(known, counts({"total": "2", "c": "passed", "d": "failed"}))
    assert found == {**known, "passed": 7, "failed": 1, "failures": ["d"]}

"""docs/torch-versions.md says what the stored results say, and nothing that did not run counts as run."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from devtools.paths import ROOT
from devtools.releases import run
from devtools.releases.groups import GROUPS, WITHOUT_GROUP, Group
from devtools.releases.outcomes import STARTED, read
from devtools.releases.page import PAGE, page, stored
from devtools.releases.run import corrected, counts, extended, forget_started


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


def test_every_file_of_tests_is_in_a_group_or_says_why_not() -> None:
    """A new file of tests would otherwise run with the release of CI alone, and nobody would notice."""
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    found = {
        path for path in found if not path.startswith(("tests/cuda/", "tests/registry/", "tests/second_device/", "tests/xla/"))
    }
    grouped = {path for group in GROUPS for path in group.paths}
    assert found == grouped | WITHOUT_GROUP.keys()
    assert not grouped & WITHOUT_GROUP.keys()
    assert len({(group.paths, group.code, group.keyword) for group in GROUPS}) == len(GROUPS)


def test_what_did_not_run_is_shown() -> None:
    (result, *_) = stored()
    found = page([{**result, "groups": {"table": {**PARTIAL, "files": [], "date": "2026-11-24 00:00 UTC"}}}])
    assert "| 2 passed, **1 failed** (4 of 9 ran) (without 1 of 1 files) |" in found
    assert "`c`" in found
    assert "| Frozen vectors of the format | not run |" in found


def test_files_that_a_group_got_later_are_shown() -> None:
    (result, *_) = stored()
    group = next(group for group in GROUPS if group.name == "call-library")
    counted = {**counts({"total": "1", "a": "passed"}), "date": "2026-11-24 00:00 UTC"}
    for files, cell in ((group.paths, "1 passed |"), (group.paths[1:], f"1 passed (without 1 of {len(group.paths)} files) |")):
        found = page([{**result, "groups": {group.name: {**counted, "files": list(files)}}}])
        assert f"| {group.title} | {cell}" in found


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


def test_the_fixes_whose_cases_fail_without_them_are_stored() -> None:
    left_out = "tests/torch_fixes/test_fixes.py::test_with_a_fix_left_out_its_case_fails"
    known = counts(
        {"total": "4", f"{left_out}[a]": "passed", f"{left_out}[b]": "failed", f"{left_out}[c]": "skipped", "d": "passed"}
    )
    assert known["fails_without"] == ["a"]
    again = counts({"total": "1", f"{left_out}[b]": "passed"})
    assert corrected(known, again)["fails_without"] == ["a", "b"]
    assert "fails_without" not in corrected(PARTIAL, PARTIAL)


def test_files_that_a_group_got_later_are_added_to_its_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    known = {**PARTIAL, "files": ["one.py"], "date": "2026-11-24 00:00 UTC", "tree": "1234567"}
    found = extended(known, {**counts({"total": "1", "e": "passed"}), "files": ["two.py"]})
    assert (found["total"], found["passed"], found["failures"]) == (10, 3, ["c"])
    assert found["files"] == ["one.py", "two.py"]
    stored_result = json.loads(run.store({"building": found}).read_text())["groups"]["building"]
    assert stored_result["tree"].startswith("1234567, ")


def test_a_failed_test_that_is_gone_counts_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ROOT", tmp_path)
    (tmp_path / "test_one.py").write_text("def test_kept(): pass\ndef test_other(): pass\n")
    group = Group("one", "loader", "One", ("test_one.py",))
    names = ["test_one.py::test_kept", "test_one.py::test_gone"]
    again = run.run_group(group, only=names)
    assert (again["total"], again["passed"]) == (1, 1)
    known = {"total": 5, "passed": 3, "failed": 2, "skipped": 0, "failures": names}
    assert corrected(known, again) == {"total": 4, "passed": 4, "failed": 0, "skipped": 0, "failures": []}


@pytest.mark.parametrize("script", ["setup-torch", "test-torch"])
def test_a_script_called_without_a_release_prints_its_help(script: str, tmp_path: Path) -> None:
    """From any directory, by whichever path."""
    called = os.path.relpath(ROOT / "scripts" / script, tmp_path)
    done = subprocess.run([called, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"scripts/{script} 2.15.0 " in done.stderr
    assert "set -" not in done.stderr


@pytest.mark.parametrize(("limit", "message"), [("torch<2.15", "pip's configuration forbids torch 2.15.0"), ("", "no index has")])
def test_a_torch_that_pip_refuses_is_explained(tmp_path: Path, limit: str, message: str) -> None:
    if limit:
        with zipfile.ZipFile(tmp_path / "torch-2.15.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("torch-2.15.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n")
            wheel.writestr("torch-2.15.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr("torch-2.15.0.dist-info/RECORD", "")
    constraint = tmp_path / "limits.txt"
    constraint.write_text(limit)
    pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_CONSTRAINT": constraint, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": tmp_path}
    settings = {name: str(value) for name, value in {**pip, "AOTPACK_ENVS": tmp_path / "envs"}.items()}
    command = [ROOT / "scripts/setup-torch", "2.15.0"]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"error: {message}" in done.stderr
    assert list((tmp_path / "envs").iterdir()) == []

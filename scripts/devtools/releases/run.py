"""Runs groups of tests with the torch of this interpreter, and stores what passed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from devtools.machine import provenance
from devtools.paths import RESULTS, ROOT

from .groups import Group
from .outcomes import STARTED, TOTAL, read

FOLDER = RESULTS / "torch-versions"
"""A JSON file for each torch and Python."""

RELEASE = f"{str(torch.__version__).partition('+')[0]}-{sys.version_info[0]}.{sys.version_info[1]}"
"""This torch and this Python; the name of their file."""

_TESTS_FAILED, _NOTHING_LEFT = 1, 5
_LEFT_OUT = re.compile(r".*::test_with_a_fix_left_out_its_case_fails\[(.+)\]")
"""The test of a fix that passes if its case fails without the fix."""
_RESTARTS = 40


def outcomes_file(group: Group, *, again: bool = False) -> Path:
    """Where the outcomes of a group, or those of its failed tests, are kept until all of them ran."""
    return ROOT / "build" / "torch-versions" / RELEASE / f"{group.name}{'-again' if again else ''}.jsonl"


def run_group(
    group: Group, arguments: Sequence[str] = (), *, minutes: float | None = None, only: Sequence[str] = ()
) -> dict[str, Any]:
    """Run the tests of a group whose outcome is not known yet, and return the group's counts.

    A test that ends its process counts as failed, and the rest of the group runs in another one.
    After ``minutes`` the group stops; a later run continues. ``only``: run these tests of the group,
    as far as they still exist.
    """
    outcomes = outcomes_file(group, again=bool(only))
    outcomes.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"AOTPACK_OUTCOMES": str(outcomes), "AOTPACK_CODE": group.code, "AOTPACK_NIGHTLY": "1"}
    environment["AOTPACK_ONLY"] = "\n".join(only)
    words = [sys.executable, "-m", "pytest", "-p", "devtools.releases.outcomes", "-p", "no:cacheprovider", "-q"]
    words += [*(["-k", group.keyword] if group.keyword else []), *group.paths]
    words += arguments
    end = None if minutes is None else time.monotonic() + 60 * minutes
    for _ in range(_RESTARTS):
        try:
            left = None if end is None else max(0.0, end - time.monotonic())
            code = subprocess.run(words, cwd=ROOT, env=environment, check=False, timeout=left).returncode
        except subprocess.TimeoutExpired:
            forget_started(outcomes)
            return {**counts(read(outcomes)), "files": list(group.paths)}
        if code in (0, _TESTS_FAILED, _NOTHING_LEFT):
            return {**counts(read(outcomes)), "files": list(group.paths)}
        if STARTED not in read(outcomes).values():
            raise SystemExit(f"{group.name}: pytest ended with {code} before a test started")
    raise SystemExit(f"{group.name}: {_RESTARTS} processes ended without finishing it")


def forget_started(outcomes: Path) -> None:
    """Let the next run repeat the test that was stopped. It has not ended its process."""
    kept = [line for line in outcomes.read_text().splitlines(keepends=True) if json.loads(line)["outcome"] != STARTED]
    outcomes.write_text("".join(kept))


def counts(outcomes: Mapping[str, str]) -> dict[str, Any]:
    """What is stored of a group: numbers of tests, and the names of those that failed.

    A test that started and did not end has ended its process. Groups of fixes also have the fixes
    whose cases were seen to fail without them.
    """
    seen = sorted(found[1] for test, outcome in outcomes.items() if outcome == "passed" and (found := _LEFT_OUT.fullmatch(test)))
    failed = sorted(test for test, outcome in outcomes.items() if outcome in ("failed", STARTED))
    number = list(outcomes.values()).count
    return {
        "total": int(outcomes.get(TOTAL, 0)),
        "passed": number("passed"),
        "failed": len(failed),
        "skipped": number("skipped"),
        "failures": failed,
        **({"fails_without": seen} if seen else {}),
    }


def stored_group(group: Group) -> dict[str, Any]:
    """What is stored of a group with this torch; empty if nothing is."""
    path = FOLDER / f"{RELEASE}.json"
    found: dict[str, Any] = json.loads(path.read_text())["groups"].get(group.name, {}) if path.exists() else {}
    return found


def corrected(known: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of a group after another run of its failed tests, some of which may be gone."""
    seen = sorted({*known.get("fails_without", ()), *again.get("fails_without", ())})
    return {
        **known,
        **({"fails_without": seen} if seen else {}),
        "total": known["total"] - len(known["failures"]) + again["total"],
        "passed": known["passed"] + again["passed"],
        "skipped": known["skipped"] + again["skipped"],
        "failed": again["failed"],
        "failures": again["failures"],
    }


def extended(known: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of a group and of files that it got later."""
    summed = {name: known[name] + later[name] for name in ("total", "passed", "failed", "skipped", "failures", "files")}
    seen = sorted({*known.get("fails_without", ()), *later.get("fails_without", ())})
    return {**known, **summed, **({"fails_without": seen} if seen else {})}


def store(results: Mapping[str, Mapping[str, Any]]) -> Path:
    """Add groups that ran to the stored results of this torch. Results of several runs name the commit of each."""
    path = FOLDER / f"{RELEASE}.json"
    known = json.loads(path.read_text()) if path.exists() else {"groups": {}}
    where = provenance()
    trees = {name: ", ".join(dict.fromkeys([*_trees(result), where["tree"]])) for name, result in results.items()}
    stamped = {name: {**result, "date": where["date"], "tree": trees[name]} for name, result in results.items()}
    groups = dict(sorted({**known["groups"], **stamped}.items()))
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**where, "torch": str(torch.__version__), "groups": groups}
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def _trees(result: Mapping[str, Any]) -> Sequence[str]:
    """The commits that a stored group was run at; those of old results are not recorded."""
    if "date" not in result:
        return []
    commits: str = result.get("tree", "not recorded")
    return commits.split(", ")

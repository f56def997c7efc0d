"""The page docs/torch-versions.md, made from the stored results and the register of fixes."""

from __future__ import annotations

import itertools
import json
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aotpack._torch.fixes.entries import FIXES
from aotpack._torch.fixes.register import INDUCTOR_SUPPORTED, SUPPORTED, minor, name_of
from devtools.paths import RESULTS, ROOT

from .groups import GROUPS, Group

PAGE = ROOT / "docs" / "torch-versions.md"

Result = Mapping[str, Any]
"""A stored file: versions, machine, and counts by group."""

_HEAD = """\
# torch releases

This page says what ran with which torch. `scripts/test-torch` runs the tests and makes the page
from the files in `scripts/bench/results/torch-versions`.

CI tests every change with torch 2.13.0 and Python 3.11. It leaves out slow tests of fixes, so only
these have a cell for this pair. The loader accepts torch 2.9 to 2.15. The compiler accepts:

- for `portable`: torch {portable}
- for targets with native code: torch {native}

With another release a build stops with an `UnsupportedTorchError`, which `--allow-untested-torch`
overrides: compare such a bundle with eager.

Code for `cpu` of torch 2.13, 2.14 and 2.15 runs on the other two: the loader's table of tried pairs
is what `scripts/test-torch-matrix` found. On torch 2.9 and 2.11 calls run in Python, because the
call library needs torch 2.13. torch 2.9 is for loading alone: it is the last with
[torch_xla](xla.md). Wheels of both distributions install and train a small model with each torch and
Python of this page.
Python 3.14 is the one of Debian forky, and ran in a chroot of it with GCC 16.

The page about [fixes of torch](torch-fixes.md) lists what a build corrects.

A cell has the numbers of tests that passed and failed. Skipped tests count as neither. Where a run
was stopped, the cell also says how many of the group's tests have an outcome. Where files were
added to a group later, it says how many did not run.
"""

_MATRIX = """\
Each case of `scripts/test-torch-matrix` is compiled by one release and run by others. It is compared
with eager there, and bit for bit with the release that built it. torch 2.11 lacks a function that
the code calls, so the loader refuses it there. Run on {date}.
"""

_OF_CI = "torch 2.13.0, Python 3.11"
_PARTS = {"loader": "Loader", "builder": "Builder", "fixes": "Fixes of torch"}


def stored(folder: Path = RESULTS / "torch-versions") -> list[Result]:
    """Everything stored, newest torch first."""
    found: list[Result] = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(found, key=_release, reverse=True)


def page(results: Sequence[Result]) -> str:
    """The whole page."""
    lines = [_HEAD.format(portable=_listed(SUPPORTED), native=_listed(INDUCTOR_SUPPORTED))]
    every, builders = results, [result for result in results if name_of(minor(result["torch"])) in SUPPORTED]
    for part, title in _PARTS.items():
        results = every if part == "loader" else builders
        lines += [f"## {title}", "", *_table("tests", [_name(result) for result in results])]
        for group in GROUPS:
            if group.part == part:
                lines.append(_row(group.title, [_cell(result, group) for result in results]))
        if part == "fixes":
            lacking = [len(_lacking(result)) for result in results]
            lines.append(_row("Fixes that a build applies", [f"{len(FIXES) - count} of {len(FIXES)}" for count in lacking]))
            lines.append(_row("Faults that torch lacks", list(map(str, lacking))))
        lines.append("")
    parts = (_fixed(builders), _matrix(stored_matrix()), _failures(every), _machines(every))
    return "\n".join([*lines, *itertools.chain(*parts)]).rstrip() + "\n"


def stored_matrix(path: Path = RESULTS / "torch-matrix.json") -> Mapping[str, Any]:
    """What ``scripts/test-torch-matrix`` stored."""
    found: Mapping[str, Any] = json.loads(path.read_text())
    return found


def _matrix(found: Mapping[str, Any]) -> list[str]:
    """What became of the cases of each release, by the release that ran them."""
    loads = {built: found["loads"][built] for built in sorted(found["loads"], key=_numbers)}
    releases = sorted({release for row in loads.values() for release in row}, key=_numbers)
    lines = ["## Native code on other releases", "", *textwrap.wrap(_MATRIX.format(date=found["date"]), 99), ""]
    lines += _table("built on", [f"run on torch {release}" for release in releases])
    for built, row in loads.items():
        counted = [Counter(case["result"] for case in row.get(release, {}).values()) for release in releases]
        cells = [", ".join(f"{count} {result}" for result, count in results.most_common()) or "not run" for results in counted]
        lines.append(_row(f"torch {built}", cells))
    return [*lines, ""]


def _listed(releases: Sequence[str]) -> str:
    *first, last = releases
    return f"{', '.join(first)} and {last}" if first else str(last)


def _table(first: str, heads: Sequence[str]) -> list[str]:
    return [_row(first, heads), _row("---", ["---"] * len(heads))]


def _row(first: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"


def _cell(result: Result, group: Group) -> str:
    found = result["groups"].get(group.name)
    if found is None:
        return "CI" if _name(result) == _OF_CI else "not run"
    known = found["passed"] + found["failed"] + found["skipped"]
    if found["skipped"] == found["total"]:
        return "all skipped"
    text = f"{found['passed']} passed" + (f", **{found['failed']} failed**" if found["failed"] else "")
    if known < found["total"]:
        text += f" ({known} of {found['total']} ran)"
    later = len(set(group.paths).difference(found["files"]))
    return text + (f" (without {later} of {len(group.paths)} files)" if later else "")


def _failures(results: Sequence[Result]) -> list[str]:
    found = [
        f"- {_name(result)}: `{test}`{_reason(group, test)}"
        for result in results
        for group in result["groups"].values()
        for test in group["failures"]
    ]
    return ["## Tests that failed", "", *found, ""] if found else []


def _reason(group: Mapping[str, Any], test: str) -> str:
    """Why a test failed, where somebody has found out and written it to the results."""
    reason = group.get("reasons", {}).get(test)
    return f" ({reason})" if reason else ""


def _fixed(results: Sequence[Result]) -> list[str]:
    names = {_torch(result): _lacking(result) for result in results}
    found = [f"- {torch}: {', '.join(f'`{fix}`' for fix in fixed)}" for torch, fixed in names.items() if fixed]
    return ["A build leaves out these fixes, because that torch lacks the fault:", "", *found, ""] if found else []


def _lacking(result: Result) -> list[str]:
    """The fixes that a build leaves out with this torch, by the register of today."""
    return sorted(fix.id for fix in FIXES if not fix.is_needed(result["torch"]))


def _machines(results: Sequence[Result]) -> list[str]:
    lines = ["## Where it ran", "", *_table("torch", ["Python", "system", "processor", "date", "commits"])]
    for result in results:
        machine, dates = result["machine"], sorted({group["date"] for group in result["groups"].values()})
        span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        processor = f"{machine['cpu']}, {machine['cores']} cores"
        trees = sorted({tree for group in result["groups"].values() for tree in group.get("tree", "not recorded").split(", ")})
        where = [result["versions"]["python"], machine["system"], processor, span, ", ".join(trees)]
        lines.append(_row(result["torch"], where))
    return lines


def _name(result: Result) -> str:
    return f"{_torch(result)}, Python {'.'.join(result['versions']['python'].split('.')[:2])}"


def _torch(result: Result) -> str:
    return f"torch {result['torch'].partition('+')[0]}"


def _release(result: Result) -> tuple[int, ...]:
    return _numbers(f"{result['torch'].partition('+')[0]}.{result['versions']['python']}")


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))

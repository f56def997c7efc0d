"""Runs groups of tests with the torch of this interpreter, and makes docs/torch-versions.md.

Other arguments go to pytest. A group keeps the outcomes of its tests until all of them ran, so a
run that was stopped continues when it is started again.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from .groups import GROUPS, Group
from .page import PAGE, page, stored
from .run import corrected, extended, outcomes_file, run_group, store, stored_group


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/test-torch VERSION", description=__doc__)
    names = [group.name for group in GROUPS]
    parser.add_argument("--group", action="append", choices=names, help="run this group only; may be repeated")
    parser.add_argument("--native", action="store_true", help="also run groups that compile native code")
    parser.add_argument("--minutes", type=float, help="stop each group after this time")
    parser.add_argument("--failed", action="store_true", help="run only the tests that failed the last time")
    parser.add_argument("--later", action="store_true", help="run only the files that a group got after its last run")
    options, arguments = parser.parse_known_args()
    failed = 0
    for group in GROUPS:
        if options.failed or options.later:
            if options.group is None or group.name in options.group:
                rerun = _again if options.failed else _later
                failed += rerun(group, arguments, options.minutes)
        elif group.name in options.group if options.group else options.native or not group.slow:
            print(f"== {group.name}: {group.title}", flush=True)
            result = run_group(group, arguments, minutes=options.minutes)
            failed += result["failed"]
            print(f"stored in {store({group.name: result})}")
            if result["passed"] + result["failed"] + result["skipped"] >= result["total"]:
                outcomes_file(group).unlink()
    PAGE.write_text(page(stored()))
    return int(failed > 0)


def _again(group: Group, arguments: list[str], minutes: float | None) -> int:
    """Run the failed tests of a group again; return how many fail now."""
    known = stored_group(group)
    if not known.get("failures"):
        return 0
    print(f"== {group.name}, failed tests: {group.title}", flush=True)
    again = run_group(group, arguments, minutes=minutes, only=known["failures"])
    if again["passed"] + again["failed"] + again["skipped"] < again["total"]:
        return int(known["failed"])
    outcomes_file(group, again=True).unlink()
    print(f"stored in {store({group.name: corrected(known, again)})}")
    return int(again["failed"])


def _later(group: Group, arguments: list[str], minutes: float | None) -> int:
    """Run the files that a group got after it ran; return how many of their tests fail."""
    known = stored_group(group)
    files = [path for path in group.paths if path not in known.get("files", group.paths)]
    if not files:
        return 0
    print(f"== {group.name}, later files: {group.title}", flush=True)
    part = replace(group, name=f"{group.name}-later", paths=files)
    later = run_group(part, arguments, minutes=minutes)
    if later["passed"] + later["failed"] + later["skipped"] >= later["total"]:
        outcomes_file(part).unlink()
        print(f"stored in {store({group.name: extended(known, later)})}")
    return int(later["failed"])


if __name__ == "__main__":
    sys.exit(main())

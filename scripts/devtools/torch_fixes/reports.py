"""The pages that say what the programs of the reports show on each torch. They need no torch."""

from __future__ import annotations

import functools
import json
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..pages import replaced
from ..paths import RESULTS, ROOT
from .programs import NOT_SHOWN, REPORTS, Report, path_of, report_of
from .register import ENTRIES, REGISTER

SEEN = REPORTS / "seen.json"
"""What the programs showed: fix, then release of torch."""
TABLE = ROOT / "docs" / "torch-fixes.md"
README = ROOT / "README.md"

RAN = RESULTS / "torch-versions"
"""What ``scripts/test-torch`` stored, a file for each torch and Python."""

Seen = Mapping[str, Mapping[str, str]]
"""One fix's part of ``seen.json``."""


def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    return found


def results(fix: str, report: Report) -> dict[str, Mapping[str, str]]:
    """What a program showed by release of torch, without what another version of it showed."""
    found: Seen = stored().get(fix, {})
    ordered = sorted(found, key=_numbers)
    return {release: found[release] for release in ordered if found[release]["program"] == report.fingerprint}


def pages() -> dict[str, str]:
    """The text of the page about each fix, by its ID. The documentation's build makes them (scripts/docs_hooks.py)."""
    return {fix.id: _page(fix) for fix in ENTRIES.FIXES}


def tables() -> dict[Path, str]:
    """The pages with a table of all fixes and with their count, by file."""
    counted = f"- Builds correct [{len(ENTRIES.FIXES)} known faults](docs/torch-fixes.md) of torch's compilers."
    return {TABLE: replaced(TABLE, "fixes", _table()), README: replaced(README, "fixes", counted)}


def write_tables() -> None:
    """Write these pages, and remove what belongs to no fix from ``seen.json``."""
    for file, text in tables().items():
        file.write_text(text)
    known = stored()
    kept = {fix.id: known[fix.id] for fix in ENTRIES.FIXES if fix.id in known}
    SEEN.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def _page(fix: Any) -> str:
    report = report_of(fix.id)
    lines = [f"# {report.title}", ""]
    for paragraph in report.paragraphs:
        lines += [*_wrapped(paragraph), ""]
    found = results(fix.id, report)
    if report.program:
        lines += ["```python", report.program.strip(), "```", ""]
    for texts, releases in _by_output(found).items():
        named = " and ".join(f"torch {release}" for release in releases)
        if texts[0] == texts[1]:
            lines += [f"With {named} it prints what is expected.", ""]
        else:
            lines += ["Expected:", "", "```text", texts[0], "```", ""]
            lines += [f"Seen with {named}:", "", "```text", texts[1], "```", ""]
    if report.program and not shown_on(fix):
        lines += ["The program does not show the fault. The case of the fix does.", ""]
    if found:
        versions = (f"torch {one['torch']} with Python {one['python']}" for one in found.values())
        lines += [*_wrapped(f"Versions: {', '.join(versions)}; Linux, x86-64, on the CPU."), ""]
    lines += [
        "## In aotpack",
        "",
        *_wrapped(f"Fix: `{fix.id}`. {fix.summary}"),
        "",
        f"Severity: {fix.severity}. Upstream: {_upstream(fix)}. {_mended(fix)}".rstrip(),
        f"Case: `{fix.case}`.{_needed_on(fix)}",
    ]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 99, break_long_words=False, break_on_hyphens=False)


def _by_output(found: Mapping[str, Mapping[str, str]]) -> dict[tuple[str, str], list[str]]:
    """Releases of torch by what they print."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for release, one in found.items():
        grouped.setdefault((one["expected"], one["seen"]), []).append(release)
    return grouped


def _mended(fix: Any) -> str:
    return f"Fixed in torch {fix.fixed_in}. " if fix.fixed_in else ""


def _upstream(fix: Any) -> str:
    if fix.searched:
        return f"{fix.upstream} (searched {fix.searched})"
    if not fix.upstream.startswith("pytorch#"):
        return str(fix.upstream)
    return f"[{fix.upstream}](https://github.com/pytorch/pytorch/issues/{fix.upstream.partition('#')[2]})"


def _table() -> str:
    fixes = ENTRIES.FIXES
    unreported = [fix for fix in fixes if fix.upstream == "unreported"]
    shown = [fix for fix in fixes if shown_on(fix)]
    lines = [
        f"- Fixes: {len(fixes)}.",
        f"- Programs without aotpack show {len(shown)} of them. The pages of the others say what is missing.",
        f"- Issues or pull requests of PyTorch describe {len(fixes) - len(unreported)}. Not reported yet: {len(unreported)}.",
        f"- Fixed in a release of torch: {_fixed(fixes)}.",
        f"- Hooks: {len(ENTRIES.HOOKS)}. They use a private name of torch that has no fault.",
        "",
        "| fix | what is wrong without it | severity | fixed in | case fails without it | program shows it | upstream |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *map(_row, fixes)])


def shown_on(fix: Any) -> list[str]:
    """The releases of torch on which the program of a fix's report showed the fault."""
    found = results(fix.id, report_of(fix.id))
    return [release for release, one in found.items() if one["expected"] != one["seen"]]


def fails_without(fix: Any) -> list[str]:
    """The releases of torch on which ``scripts/test-torch`` saw the case of a fix fail without the fix."""
    return [release for release, fixes in _failing().items() if fix.id in fixes]


@functools.cache
def _failing() -> Mapping[str, Collection[str]]:
    """By release of torch, the fixes whose cases were seen to fail without them."""
    stored = [json.loads(path.read_text()) for path in RAN.glob("*.json")]
    found: dict[str, set[str]] = {result["torch"].partition("+")[0]: set() for result in stored}
    for result in stored:
        for group in result["groups"].values():
            found[result["torch"].partition("+")[0]].update(group.get("fails_without", ()))
    return {release: found[release] for release in sorted(found, key=_numbers)}


def _needed_on(fix: Any) -> str:
    found = fails_without(fix)
    return f" It fails without the fix on torch {', '.join(found)}." if found else ""


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def explained(fix: Any) -> bool:
    """Whether a report says why torch alone does not show the fault."""
    return any(paragraph.startswith(NOT_SHOWN) for paragraph in report_of(fix.id).paragraphs)


def _fixed(fixes: Sequence[Any]) -> str:
    found = Counter(fix.fixed_in for fix in fixes if fix.fixed_in)
    ordered = sorted(found.items(), key=lambda item: REGISTER.minor(item[0]))
    return ", ".join(f"{count} in {release}" for release, count in ordered)


def _row(fix: Any) -> str:
    cells = (
        f"[{fix.id}](../{path_of(fix.id).relative_to(ROOT)})",
        fix.summary.replace("|", "\\|"),
        fix.severity,
        fix.fixed_in or "",
        ", ".join(fails_without(fix)),
        ", ".join(shown_on(fix)),
        _upstream(fix),
    )
    return "| " + " | ".join(cells) + " |"

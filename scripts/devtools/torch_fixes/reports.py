"""What the programs of the reports show on this torch, and the pages that say so."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..paths import ROOT
from .programs import Program, has_case, programs
from .register import ENTRIES, MINOR, REGISTER

PAGES = ROOT / "docs" / "torch-fixes"
SEEN = PAGES / "seen.json"
"""What the programs showed: fix, then compiler (``torch.compile``, ...), then minor release."""
TABLE = ROOT / "docs" / "torch-fixes.md"

Seen = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""One fix's part of ``seen.json``."""


def show(program: Program) -> dict[str, Any]:
    """Run a program with this torch: the first call at which eager and compiled differ, or the last."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "definitions.py").write_text(program.definitions)
        (folder / "compiling.py").write_text(f"import torch\nfrom definitions import *\n\n{program.compiling}")
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("probe.py"))]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=900, check=False, env={**os.environ, "PYTHONPATH": name}
            )
            code, output, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as expired:
            code, output, errors = -signal.SIGKILL, (expired.stdout or b"").decode(), "no end after 900 s"
    calls = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if code > 0:
        raise RuntimeError(f"The program for {program.way} is wrong:\n{errors}\n{program.text}")
    if code < 0:
        return {**calls[-1], "seen": f"The process ends: {signal.Signals(-code).name}.", "agree": False}
    return next((call for call in calls if not call.get("agree", True)), calls[-1])


def run(chosen: Sequence[str]) -> None:
    """Run the programs of all reports, or of ``chosen`` fixes, with this torch; store what they show."""
    for fix in filter(has_case, ENTRIES.FIXES):
        if chosen and fix.id not in chosen:
            continue
        for program in programs(fix):
            known = stored().get(fix.id, {}).get(program.way, {}).get(MINOR)
            if known is None or known["program"] != fingerprint(program):
                found = {**show(program), "program": fingerprint(program)}
                _store(fix.id, program.way, found)
                print(f"{fix.id}, {program.way}: {'does not show' if found['agree'] else 'shows'}", flush=True)
                known = found
            if not known["agree"]:
                break


def fingerprint(program: Program) -> str:
    return hashlib.sha256(program.text.encode()).hexdigest()[:16]


def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    return found


def _store(fix: str, way: str, found: Mapping[str, Any]) -> None:
    everything = stored()
    everything.setdefault(fix, {}).setdefault(way, {})[MINOR] = found
    text = json.dumps(everything, indent=1, sort_keys=True) + "\n"
    SEEN.write_text(text)


def pages() -> dict[Path, str]:
    """The pages about the fixes, by file: a table of all, and a report for each that has a case."""
    seen = stored()
    made = {PAGES / f"{fix.id}.md": _report(fix, seen.get(fix.id, {})) for fix in ENTRIES.FIXES if has_case(fix)}
    made[TABLE] = _table(seen)
    return made


def write_pages() -> None:
    """Write the pages, and remove reports without a fix."""
    made = pages()
    for file, text in made.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for file in PAGES.glob("*.md"):
        if file not in made:
            file.unlink()


def _current(fix: Any, seen: Seen) -> tuple[Program, dict[str, Mapping[str, Any]]]:
    """The program that shows the fault, and what it showed in each minor release."""
    candidates = programs(fix)
    for program in candidates:
        results = _results(program, seen)
        if any(not result["agree"] for result in results.values()):
            return program, results
    return candidates[0], _results(candidates[0], seen)


def _results(program: Program, seen: Seen) -> dict[str, Mapping[str, Any]]:
    """What a program showed, without what another version of it showed."""
    found = seen.get(program.way, {})
    ordered = sorted(found, key=REGISTER.minor)
    return {minor: found[minor] for minor in ordered if found[minor]["program"] == fingerprint(program)}


def _report(fix: Any, seen: Seen) -> str:
    program, results = _current(fix, seen)
    lines = [f"# {fix.id}", "", fix.summary, "", f"Severity: {fix.severity}. Upstream: {fix.upstream}.", ""]
    lines += ["```python", program.text.rstrip(), "```", ""]
    for minor, result in results.items():
        if result["agree"]:
            lines += [f"torch {minor}: eager and {program.way} agree in this program.", ""]
        else:
            lines += [f"torch {minor}, expected:", "", "```text", _short(result["expected"]), "```", ""]
            lines += ["Seen:", "", "```text", _short(result["seen"]), "```", ""]
    if not any(not result["agree"] for result in results.values()):
        lines += [f"This program does not show the fault. The case of the fix does: `{fix.case}`.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _short(text: str) -> str:
    return "\n".join(line[:110].rstrip() for line in text.splitlines()[:12])


def _table(seen: Mapping[str, Seen]) -> str:
    fixes = ENTRIES.FIXES
    shown = sum(_is_shown(fix, seen) for fix in fixes)
    unreported = sum(fix.upstream == "unreported" for fix in fixes)
    lines = [
        "# Fixes of torch",
        "",
        "A build corrects these faults of torch. `scripts/torch-fixes docs` makes this page from the",
        "register in `aotpack/_torch/fixes`.",
        "",
        f"- Fixes: {len(fixes)}. A case of its own proves {sum(map(has_case, fixes))} of them: it fails without the fix and",
        "  passes with it (`tests/torch_fixes`). The others are tested elsewhere.",
        f"- Not reported to PyTorch yet: {unreported}. Programs without aotpack show {shown} of",
        "  them, ready to report. Where a column names no compiler, the page's program shows nothing yet.",
        f"- Fixed in a release of torch: {_fixed(fixes)}. A build with that release or a later one leaves them out.",
        f"- Hooks: {len(ENTRIES.HOOKS)}. They use a private name of torch that has no fault.",
        "",
        "| fix | what is wrong without it | severity | broken | fixed in | report shows it | upstream | test |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_row(fix, seen.get(fix.id, {})) for fix in fixes]
    return "\n".join(lines) + "\n"


def _is_shown(fix: Any, seen: Mapping[str, Seen]) -> bool:
    """Whether the program of a fix's report showed the fault, with some release of torch."""
    return has_case(fix) and any(not result["agree"] for result in _current(fix, seen.get(fix.id, {}))[1].values())


def _fixed(fixes: Sequence[Any]) -> str:
    found = Counter(fix.fixed_in for fix in fixes if fix.fixed_in)
    return ", ".join(
        f"{count} in {release}" for release, count in sorted(found.items(), key=lambda item: REGISTER.minor(item[0]))
    )


def _row(fix: Any, seen: Seen) -> str:
    shown = ""
    if has_case(fix):
        program, results = _current(fix, seen)
        found = [minor for minor, result in results.items() if not result["agree"]]
        shown = f"{program.way}, {', '.join(found)}" if found else ""
    cells = (
        f"[{fix.id}](torch-fixes/{fix.id}.md)" if has_case(fix) else fix.id,
        fix.summary.replace("|", "\\|"),
        fix.severity,
        ", ".join(fix.broken),
        fix.fixed_in or "",
        shown,
        fix.upstream,
        f"`{Path(fix.case).name}`" if has_case(fix) else "elsewhere",
    )
    return "| " + " | ".join(cells) + " |"

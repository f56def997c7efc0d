"""Programs for upstream reports: each shows a fault with torch alone, and prints what is expected and what is seen."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..paths import ROOT

REPORTS = ROOT / "tests" / "torch_fixes" / "reports"
NOT_SHOWN = "Not shown without aotpack: "
"""What a report starts a paragraph with if it has no program, and why."""
_EXPECTED, _SEEN = "expected ", "seen "
_LINES = 12
_TIMEOUT = 900


@dataclass(frozen=True)
class Report:
    """The file of a report: comments at its top, then a program.

    Args:
        title: the title of an issue.
        paragraphs: the cause, and what else a maintainer of torch wants to know.
        program: a program without aotpack; empty if torch alone cannot show the fault.
    """

    title: str
    paragraphs: list[str]
    program: str

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.program.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Shown:
    """What a program printed: ``expected`` is eager's, ``seen`` what torch's compiler did."""

    expected: str
    seen: str

    @property
    def differs(self) -> bool:
        return self.expected != self.seen


def path_of(identifier: str) -> Path:
    """The file of the report of a fix."""
    return REPORTS / f"{identifier.replace('-', '_')}.py"


def report_of(identifier: str) -> Report:
    """Read the report of a fix."""
    lines = path_of(identifier).read_text().splitlines(keepends=True)
    length = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    title, *text = (line.lstrip("#").strip() for line in lines[:length])
    paragraphs = [" ".join(paragraph.split("\n")) for paragraph in "\n".join(text).strip().split("\n\n")]
    return Report(title, [paragraph for paragraph in paragraphs if paragraph], "".join(lines[length:]))


def show(program: str) -> Shown:
    """Run a program with this torch, in a process of its own: some faults end the process.

    Raises:
        RuntimeError: it does not print what is expected.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "program.py")
        file.write_text(program)
        command = [sys.executable, "-W", "ignore", str(file)]
        flushed = os.environ | {"PYTHONUNBUFFERED": "1"}  # a crash loses nothing that was printed before
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False, env=flushed)
    before, _, after = f"\n{done.stdout}".partition(f"\n{_SEEN}")
    expected = before.partition(f"\n{_EXPECTED}")[2]
    if not expected:
        raise RuntimeError(f"The program says nothing that is expected:\n{done.stdout}\n{done.stderr}\n{program}")
    if done.returncode < 0:
        return Shown(_short(expected), f"The process ends: {signal.Signals(-done.returncode).name}.")
    return Shown(_short(expected), _short(after or _error(done.stderr)))


def _error(text: str) -> str:
    """The last error of a traceback, without the lines after its message."""
    lines = text.strip().splitlines()
    start = max((i for i, line in enumerate(lines) if line.startswith("Traceback")), default=0)
    found = (line for line in lines[start + 1 :] if line and not line[0].isspace())
    return next(found, lines[-1] if lines else "no output")


def _short(text: str) -> str:
    return "\n".join(line[:110].rstrip() for line in text.strip().splitlines()[:_LINES])

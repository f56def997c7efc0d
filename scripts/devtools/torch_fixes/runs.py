"""Runs the programs of the reports with this torch, and stores what they show."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence

import torch

from .programs import Report, Shown, report_of, show
from .register import ENTRIES
from .reports import SEEN, stored

RELEASE = str(torch.__version__).partition("+")[0]


def run(chosen: Sequence[str]) -> None:
    """Run the programs of all reports, or of ``chosen`` fixes, with this torch; store what is new."""
    for fix in ENTRIES.FIXES:
        report = report_of(fix.id)
        known = stored().get(fix.id, {}).get(RELEASE, {})
        if (chosen and fix.id not in chosen) or not report.program or known.get("program") == report.fingerprint:
            continue
        shown = show(report.program)
        _store(fix.id, report, shown)
        print(f"{fix.id}: {'shown' if shown.differs else 'not shown'}", flush=True)


def _store(fix: str, report: Report, shown: Shown) -> None:
    everything = stored()
    everything.setdefault(fix, {})[RELEASE] = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "program": report.fingerprint,
        "expected": shown.expected,
        "seen": shown.seen,
    }
    SEEN.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n")

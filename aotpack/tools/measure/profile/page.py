"""The page of ``aotpack profile --html``: a flame graph of a step by module, line and kernel, and the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from ...report.html import Page, Section, fragment, render
from .profiling import OUTSIDE, Cell, Profile, Row

_MEASURES: Final = {"time": "a step", "peak": "allocated at the peak", "saved": "saved for the backward"}
"""What the flame graphs show, and what stands at their roots."""
Measure = Literal["time", "peak", "saved"]


def profile_page(profile: Profile, notes: Sequence[str], machine: str) -> str:
    """Return the page as HTML.

    Args:
        profile: what was measured.
        notes: what the reader should know about it.
        machine: the machine, in words.
    """
    tables = {
        "modules": ("Modules", "The innermost module that an operator runs in.", profile.by_module()),
        "lines": ("Source lines", "The innermost line of the original.", profile.by_line()),
        "kernels": ("Kernels", "What was measured: compiled kernels, and operators of libraries.", profile.by_kernel()),
    }
    sections = [
        Section("overview", "Overview", fragment("profile/overview", profile=profile, notes=notes, machine=machine)),
        Section("time", "Time", _flame("time"), "By part of the step and module, below it by line and kernel. A click zooms in."),
        Section("memory", "Memory", _flame("peak", "saved"), "Beside parameters, buffers and arguments."),
        *[Section(key, title, _table(key, rows, profile.step), note) for key, (title, note, rows) in tables.items()],
    ]
    data = {measure: [_flame_row(cell, measure) for cell in profile.cells if getattr(cell, measure)] for measure in _MEASURES}
    title = f"{profile.bundle}: where time and memory go"
    subtitle = f"{profile.backend}, {profile.digest}"
    return render(Page(title, profile.bundle, subtitle, sections, {"profile": data}, ["icicle", "profile"], ["d3-hierarchy"]))


def _flame(*measures: Measure) -> Any:
    return fragment("profile/flame", measures=[{"name": name, "root": _MEASURES[name]} for name in measures])


def _flame_row(cell: Cell, measure: str) -> tuple[str, str, float]:
    """Path, leaf and value. Parts of the path are separated by dots."""
    path = ".".join(filter(None, (cell.part if measure != "saved" else "", cell.module)))
    return path, "  ".join(filter(None, (cell.line, cell.code))) or OUTSIDE, getattr(cell, measure)


def _table(key: str, rows: Sequence[Row], total: float) -> Any:
    return fragment("profile/table", key=key, rows=rows, total=total or 1.0)

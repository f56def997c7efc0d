"""The page of ``aotpack bench --html``: start, step and memory as plots, with every run behind the medians."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..report.html import Page, Section, fragment, render
from ..report.text import size_text, time_text

if TYPE_CHECKING:
    from . import Figures

_METRICS: Final = (
    ("start", "Start", "From after `import torch` to the end of the first training step."),
    ("first_step", "First step", "The first forward and backward, after the model is made or loaded."),
    ("step", "Step", "A later forward and backward. Every step of every process is a dot."),
    ("peak_memory", "Peak memory", "The most memory that a process had, torch and Python included."),
)


def bench_page(name: str, figures: Sequence[Figures], described: str, machine: str, date: str) -> str:
    """Return the page as HTML.

    Args:
        name: the bundle's name.
        figures: what was measured.
        described: the number of processes, steps and threads, in words.
        machine: the machine and versions, in words.
        date: when it was measured.
    """
    sections = [
        Section("summary", "Summary", fragment("bench/summary", rows=figures, described=described)),
        *[
            Section(key, title, fragment("bench/plot", key=key, title=title, rows=_spread(key, figures)), note.replace("`", ""))
            for key, title, note in _METRICS
        ],
        Section("how", "What was run", fragment("bench/how", described=described, machine=machine, date=date, figures=figures)),
    ]
    names = [item.name for item in figures]
    plots = {
        key: {"names": names, "runs": [item.samples[key] for item in figures], "middle": [getattr(item, key) for item in figures]}
        for key, _, _ in _METRICS
    }
    return render(Page(f"{name}: bench", name, "start, step and memory", sections, {"bench": plots}, ["bench"], ["uplot"]))


def _spread(key: str, figures: Sequence[Figures]) -> list[dict[str, str]]:
    """The median, the ends of the range and the number of samples of each contender, as text."""

    def text(value: float) -> str:
        return size_text(int(value)) if key == "peak_memory" else time_text(value)

    rows = []
    for item in figures:
        runs = sorted(item.samples[key])
        rows.append(
            {
                "name": item.name,
                "median": text(getattr(item, key)),
                "least": text(runs[0]),
                "most": text(runs[-1]),
                "runs": str(len(runs)),
            }
        )
    return rows

"""``aotpack bench``: how fast a bundle starts and steps here."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from .console import json_option, print_json, size_text, stderr, stdout, time_text, trust_option
from .importing import import_modules, import_option

if TYPE_CHECKING:
    from ..measure import Figures


@click.command("bench", short_help="Measure a bundle's start and step.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--model", metavar="MODEL.PY[:FACTORY]", help="The model's source: measure eager and torch.compile too.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Processes of each; medians count.")
@click.option("--iterations", type=click.IntRange(min=1), default=30, show_default=True, help="Steps in each process.")
@click.option("--threads", type=click.IntRange(min=0), default=0, show_default=True, help="Of each process; 0: torch's choice.")
@import_option
@trust_option
@json_option
def command(
    bundle: Path,
    model: str | None,
    rounds: int,
    iterations: int,
    threads: int,
    modules: tuple[str, ...],
    trust: str | tuple[str, ...] | None,
    as_json: bool,
) -> None:
    """Measure how long BUNDLE takes from `import torch` to the end of its first training step, and for a step after that.

    Each figure is the median of fresh processes that take turns. Inputs are the model's examples, those recorded in the
    bundle, or random ones.
    """
    from ..measure import measure

    with stderr().status("measuring") as status:
        figures = measure(
            bundle,
            model=model,
            trust=trust,
            modules=modules,
            subclasses=import_modules(modules),
            rounds=rounds,
            iterations=iterations,
            threads=threads,
            progress=lambda name: status.update(f"measuring {name}"),
        )
    if as_json:
        print_json([asdict(item) for item in figures])
    else:
        stdout().print(_table(figures))


def _table(figures: list[Figures]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    headings = ["", "start", "load", "first step", "step", "peak memory"]
    if any(item.faster is not None for item in figures):
        headings += ["start, of warm compile", "step, of warm compile"]
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for item in figures:
        cells = [time_text(item.start), time_text(item.load), time_text(item.first_step), time_text(item.step)]
        cells.append(size_text(item.peak_memory))
        if item.faster is not None and item.step_ratio is not None:
            cells += [f"{item.faster:.3g} times sooner", f"{item.step_ratio:.2f} times"]
        table.add_row(item.name, *cells)
    return table

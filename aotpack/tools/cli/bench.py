"""``aotpack bench``: measures how fast a bundle starts and steps on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from .console import device_option, json_option, print_json, size_text, stderr, stdout, time_text, trust_option, write_page
from .importing import import_modules, import_option
from .paths import BundlePath

if TYPE_CHECKING:
    from ..measure import Figures

REFERENCE = "torch.compile, warm cache"
COMPARED = "warm torch.compile"


@click.command("bench", short_help="Measure a bundle's start and step.")
@click.argument("bundle", type=BundlePath())
@click.option("--model", metavar="MODEL.PY[:FACTORY]", help="The model's source: measure eager and torch.compile too.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Processes of each; medians count.")
@click.option("--iterations", type=click.IntRange(min=1), default=30, show_default=True, help="Steps in each process.")
@click.option("--threads", type=click.IntRange(min=0), default=0, show_default=True, help="Of each process; 0: torch's choice.")
@click.option(
    "--html", "page", metavar="OUT.HTML", type=click.Path(dir_okay=False, path_type=Path), help="Write plots as a page."
)
@device_option
@import_option
@trust_option
@json_option
def command(
    *,
    bundle: Path,
    model: str | None,
    rounds: int,
    iterations: int,
    threads: int,
    page: Path | None,
    device: str | None,
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
            device=device,
            trust=trust,
            modules=modules,
            subclasses=import_modules(modules),
            rounds=rounds,
            iterations=iterations,
            threads=threads,
            progress=lambda name: status.update(f"measuring {name}"),
        )
    if page is not None:
        _write_page(page, bundle, figures, iterations)
    if as_json:
        print_json([asdict(item) for item in figures])
    else:
        stdout().print(_table(figures))
        stdout().print(_description(figures, iterations), highlight=False)


def _write_page(page: Path, bundle: Path, figures: list[Figures], iterations: int) -> None:
    from datetime import UTC, datetime
    from importlib.metadata import version

    from ..measure.bench_page import bench_page
    from ..measure.machine import machine_text

    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    machine = f"{machine_text()}, torch {version('torch')}"
    write_page(page, bench_page(bundle.name, figures, _description(figures, iterations), machine, date))


def _table(figures: list[Figures]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    headings = ["", "start", "load", "first step", "step", "peak memory"]
    if any(item.faster is not None for item in figures):
        headings += [f"start, against {COMPARED}", f"step, against {COMPARED}"]
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for item in figures:
        cells = [time_text(item.start), time_text(item.load), time_text(item.first_step), time_text(item.step)]
        cells.append(size_text(item.peak_memory))
        if item.faster is not None and item.step_ratio is not None:
            cells += ["", ""] if item.name == REFERENCE else [compared(1 / item.faster), compared(item.step_ratio)]
        table.add_row(item.name, *cells)
    return table


def _times(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 100 else f"{factor:.3g}"


def compared(ratio: float) -> str:
    """Return the ratio of two times as text that says which one is faster."""
    if ratio <= 0.5:
        return f"{_times(1 / ratio)} times as fast"
    if ratio >= 2:
        return f"{_times(ratio)} times as long (slower)"
    percent = round(abs(1 - ratio) * 100)
    if percent == 0:
        return "the same"
    return f"{percent} % less time (faster)" if ratio < 1 else f"{percent} % more time (slower)"


def _description(figures: list[Figures], iterations: int) -> str:
    """Return what was run, as text: rounds, processes, steps and threads, and what each figure is."""
    rounds = max(item.runs for item in figures)
    threads = sorted({item.threads for item in figures})
    once = [item.name for item in figures if item.runs < rounds]
    words = [
        f"{rounds} round{'' if rounds == 1 else 's'}. Each round ran every row once, in turn, in a fresh process with "
        f"{' or '.join(map(str, threads))} thread{'' if threads == [1] else 's'}.",
    ]
    if once:
        words.append(f"Only once in all: {', '.join(once)}.")
    if rounds > 1:
        words.append("Each figure is the median of the rounds.")
    words.append(
        "Start: from after `import torch` to the end of the first training step. "
        f"Step: the median of {iterations} later step{'' if iterations == 1 else 's'} of a process, forward and backward."
    )
    return " ".join(words)

"""``aotpack profile``: where the time and the memory of a step go, by module and source line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from rich.table import Table

from .console import json_option, plain, print_json, size_text, stderr, stdout, time_text, trust_option, write_page
from .importing import import_modules, import_option
from .paths import BundlePath

if TYPE_CHECKING:
    from ..measure.profile import Profile, Row

_QUIET = {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""torch's profiler writes to stderr when it starts and stops, unless these are set before torch is imported."""
By = Literal["module", "line", "kernel"]


@click.command("profile", short_help="Show time and memory by module and line.")
@click.argument("bundle", type=BundlePath())
@click.option("--backend", metavar="TARGET", help="Run this target, not the best that fits.")
@click.option(
    "--by",
    type=click.Choice(["module", "line", "kernel"]),
    multiple=True,
    default=("module", "line"),
    show_default=True,
    help="Tables to print. May be repeated.",
)
@click.option("--depth", type=click.IntRange(min=1), help="Count modules further inside as the one above.")
@click.option("--rows", type=click.IntRange(min=1), default=20, show_default=True, help="Rows of each table.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Steps without and with the profiler; the faster half counts.",
)
@click.option("--warmup", type=click.IntRange(min=1), default=3, show_default=True, help="Steps before those of either kind.")
@click.option("--threads", type=click.IntRange(min=0), default=0, show_default=True, help="0: torch's choice.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of torch and of random inputs.")
@click.option("--trace", metavar="OUT.JSON", type=click.Path(dir_okay=False, path_type=Path), help="Write a Chrome trace.")
@click.option(
    "--html", "page", metavar="OUT.HTML", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with flame graphs."
)
@import_option
@trust_option
@json_option
def command(
    *,
    bundle: Path,
    backend: str | None,
    by: tuple[By, ...],
    depth: int | None,
    rows: int,
    steps: int,
    warmup: int,
    threads: int,
    seed: int,
    trace: Path | None,
    page: Path | None,
    modules: tuple[str, ...],
    trust: str | tuple[str, ...] | None,
    as_json: bool,
) -> None:
    """Run steps of BUNDLE, and show which modules and source lines of the original take their time and memory.

    Compiled kernels are included. The time of a fused kernel is divided among its operators, by the
    sizes of their tensors. Perfetto and TensorBoard open the trace.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    from ..measure.profile import profile_bundle

    with stderr().status("profiling"):
        profile, recorded = profile_bundle(
            bundle,
            backend=backend,
            steps=steps,
            warmup=warmup,
            threads=threads,
            seed=seed,
            trust=trust,
            subclasses=import_modules(modules),
        )
    if trace is not None:
        recorded.write(trace)
    if page is not None:
        from ..measure.machine import machine_text
        from ..measure.profile.page import profile_page

        write_page(page, profile_page(profile, _notes(profile), machine_text()))
    if as_json:
        print_json(_document(profile))
        return
    stdout().print(_summary(profile))
    for name in by:
        found = _rows(profile, name, depth)
        stdout().print()
        stdout().print(_table(profile, name, found[:rows]))
        if len(found) > rows:
            stdout().print(f"and {len(found) - rows} more; see --rows", style="dim")


def _rows(profile: Profile, by: By, depth: int | None) -> list[Row]:
    made: dict[By, Callable[[], list[Row]]] = {
        "module": lambda: profile.by_module(depth),
        "line": profile.by_line,
        "kernel": profile.by_kernel,
    }
    return made[by]()


def _document(profile: Profile) -> dict[str, Any]:
    """The profile as JSON: times in seconds, memory in bytes, and the rows of all tables."""
    tables = {"modules": profile.by_module(), "lines": profile.by_line(), "kernels": profile.by_kernel()}
    return asdict(profile) | {"saved": profile.saved} | {name: [asdict(row) for row in rows] for name, rows in tables.items()}


def _summary(profile: Profile) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("bundle", plain(f"{profile.bundle} ({profile.method}, {profile.backend})"))
    threads = f"{profile.threads} thread{'s' if profile.threads != 1 else ''}"
    table.add_row("run", f"{profile.steps} steps, {threads}, inputs {profile.inputs}, torch {profile.torch}")
    from ..measure.profile import PARTS

    parts = [f"{part} {time_text(time)}" for part in PARTS if (time := getattr(profile, part))]
    table.add_row("step", f"{time_text(profile.plain_step)}; with the profiler {time_text(profile.step)} ({', '.join(parts)})")
    table.add_row("memory", f"at most {size_text(profile.peak)} beyond state and inputs; {size_text(profile.saved)} saved")
    for note in _notes(profile):
        table.add_row("note", plain(note, "yellow"))
    return table


def _notes(profile: Profile) -> list[str]:
    notes = []
    if not profile.named:
        notes.append("this code does not announce its kernels: profile --backend portable, or build the bundle again")
    if not profile.located:
        notes.append("the bundle does not say where its operators come from: build it again")
    return notes


def _table(profile: Profile, by: By, rows: Sequence[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    from ..measure.profile import PARTS

    parts = [part for part in PARTS if getattr(profile, part)]
    headings = [by, "time", "share", *parts, "saved", "at the peak"]
    for heading in headings:
        table.add_column(heading, justify="left" if heading == by else "right", overflow="fold", no_wrap=heading != by)
    for row in rows:
        share = f"{row.time / profile.step:.1%}" if profile.step else ""
        sizes = [size_text(size) if size else "" for size in (row.saved, row.peak)]
        times = [time_text(time) if (time := getattr(row, part)) else "" for part in parts]
        table.add_row(plain(row.name), time_text(row.time), share, *times, *sizes)
    return table

"""``aotpack build``: model.py to a bundle, with its stages and their times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from .console import json_option, print_json, size_text, stderr, stdout, time_text, verbose_option

if TYPE_CHECKING:
    from aotpack.pipeline import BuildReport


@click.command("build", short_help="Build a bundle from model.py.")
@click.argument("entry")
@click.option("-o", "--out", required=True, metavar="PATH", help="The bundle to write.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=("cpu",),
    show_default=True,
    metavar="NAME",
    help="What to compile for: cpu, cpu:<instruction set>, portable. May be repeated.",
)
@click.option("--partitioner", type=click.Choice(["min-cut", "default"]), default="min-cut", show_default=True)
@click.option(
    "--memory-budget",
    type=click.FloatRange(0, 1),
    metavar="0..1",
    help="Share of the activations to keep for the backward; what is not kept is computed again.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("train", "infer"),
    show_default=True,
    metavar="NAME",
    help="train, infer, eval (gradients in eval mode). May be repeated.",
)
@click.option(
    "--rng",
    type=click.Choice(["default", "eager"]),
    default="default",
    show_default=True,
    help="eager: dropout and the like draw eager's numbers under one seed.",
)
@click.option(
    "--branches",
    type=click.Choice(["refuse", "example"]),
    default="refuse",
    show_default=True,
    help="Python branches on tensors' truth values: refuse the model, or go the example inputs' way and check it at each call.",
)
@click.option("--self-test/--no-self-test", default=False, help="Record inputs, outputs and gradients for `verify`.")
@click.option("--second-derivatives", is_flag=True, help="Also hold gradients of gradients (create_graph=True).")
@click.option("--no-cache", is_flag=True, help="Compile everything anew.")
@click.option("--directory", is_flag=True, help="Write an unpacked directory, as a PATH that ends in / does.")
@json_option
@verbose_option
def command(entry: str, out: str, directory: bool, no_cache: bool, as_json: bool, verbose: bool, **options: Any) -> None:
    """Build a bundle from ENTRY, `model.py` or `model.py:factory`.

    The file defines `model` (a module, a factory or a function) and `example_inputs()`; optionally `dynamic_shapes`.
    """
    progress = Progress(stderr(), verbose=verbose)
    with progress.stage("import"):
        import aotpack
        from aotpack.entry import directory_on_path, load_entry, split_spec
    with directory_on_path(split_spec(entry)[0]):
        with progress.stage("load", entry):
            loaded = load_entry(entry)
        report = aotpack.build(
            loaded.model,
            loaded.args,
            loaded.kwargs,
            out=out,
            layout="directory" if directory or out.endswith("/") else "file",
            dynamic_shapes=loaded.dynamic_shapes,
            name=loaded.name,
            cache=not no_cache,
            observer=progress,
            **options,
        )
    if as_json:
        print_json(report.to_json())
    else:
        stdout().print(summary(report))


class Progress:
    """An observer of a build: a spinner where there is a terminal, one line per finished stage everywhere."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._running: list[str] = []
        self._status: Status | None = None

    @contextmanager
    def stage(self, name: str, detail: str = "") -> Iterator[None]:
        self._running.append(f"{name} {detail}".strip())
        self._spin()
        start, mark = time.perf_counter(), "✗"
        try:
            yield
            mark = "✓"
        finally:
            self._running.pop()
            indent = "  " * len(self._running)
            self._line(f"{indent}{mark} {name:<10} {time_text(time.perf_counter() - start):>8}  {detail}".rstrip())
            self._spin()

    def note(self, message: str) -> None:
        if self._verbose:
            self._line(f"  {message}")

    def warn(self, message: str) -> None:
        self._line(f"warning: {message}", style="yellow")

    def _line(self, line: str, style: str = "") -> None:
        self._console.print(Text(line, style), soft_wrap=True)

    def _spin(self) -> None:
        """Bring the spinner in line with what runs. Without a terminal, ``-v`` says what has begun instead."""
        label = " > ".join(self._running)
        if not self._console.is_terminal:
            return
        if self._status is None and label:
            self._status = self._console.status(Text(label))
            self._status.start()
        elif self._status is not None and label:
            self._status.update(Text(label))
        elif self._status is not None:
            self._status.stop()
            self._status = None


def summary(report: BuildReport) -> Table:
    """What was made, as a table."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("bundle", Text(str(report.out)))
    table.add_row("size", size_text(report.size))
    table.add_row("digest", report.digest)
    table.add_row("targets", Text(", ".join(report.targets)))
    table.add_row("methods", Text(", ".join(report.methods)))
    stages = [f"{stage.name} {time_text(stage.seconds)}" for stage in report.stages]
    total = sum(stage.seconds for stage in report.stages)
    table.add_row("time", Text(f"{time_text(total)} ({', '.join(stages)})" if stages else time_text(total)))
    for note in report.notes:
        table.add_row("note", Text(note))
    for warning in report.warnings:
        table.add_row("warning", Text(warning, "yellow"))
    return table

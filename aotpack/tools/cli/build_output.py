"""Shared by the commands that make a bundle: options, progress and the report."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click
from rich.table import Table

from aotpack.pipeline.options import FIELDS

from ..progress import Progress
from .console import F, as_options, plain, print_json, size_text, stderr, stdout, time_text

if TYPE_CHECKING:
    from aotpack.pipeline.progress import BuildReport


def build_option(*declarations: str, **settings: Any) -> Callable[[F], F]:
    """Add an option of a build. Its default and its choices are those of the field of :class:`aotpack.pipeline.options.Options`.

    The last declaration without a dash names the field, else the first declaration does.
    """
    words = [word for word in declarations if not word.startswith("-")]
    field = FIELDS[words[-1] if words else declarations[0].partition("/")[0].removeprefix("--").replace("-", "_")]
    if choices := field.metadata.get("choices"):
        settings = {"type": click.Choice(choices), "show_default": True, **settings}
    return click.option(*declarations, default=field.default, **settings)


def optimizer_values(lr: float | None, given: Sequence[str]) -> dict[str, Any]:
    """The options of an optimizer, from the words of the command line.

    Raises:
        click.UsageError: one is not NAME=VALUE.
    """
    values: dict[str, Any] = {} if lr is None else {"lr": lr}
    for word in given:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise click.UsageError(f"--optimizer-option {word}: it is not NAME=VALUE.")
        try:
            values[name] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            values[name] = text
    return values


def no_cache_option(function: F) -> F:
    """Add ``--no-cache``."""
    return click.option("--no-cache", is_flag=True, help="Do not use the compile cache.")(function)


def untested_torch_option(function: F) -> F:
    """Add ``--allow-untested-torch``."""
    text = "Build with a torch that aotpack was not tried on; the bundle records it."
    return build_option("--allow-untested-torch", is_flag=True, help=text)(function)


def tune_option(function: F) -> F:
    """Add ``--tune``."""
    text = "Measure here which library multiplies matrices faster, MKL or oneDNN, and use it. The bundle records the choice."
    return build_option("--tune", is_flag=True, help=text)(function)


TARGETS_HELP = (
    "What to compile for: cpu, cpu:<instruction set>, portable, xla (devices behind XLA), "
    "xla:cpu or xla:tpu-<topology> (XLA's own code). May be repeated."
)


def directory_option(function: F) -> F:
    """Add ``--directory``, which :func:`layout_of` reads."""
    text = "Write an unpacked directory, as a PATH that ends in / does."
    return click.option("--directory", is_flag=True, help=text)(function)


def papers_options(function: F) -> F:
    """Add ``--provenance``, ``--sbom`` and ``--builder``."""
    for option in (
        build_option("--builder", metavar="URI", help="Who builds, for the provenance."),
        build_option("--sbom", is_flag=True, help="Attach a bill of materials (CycloneDX 1.6)."),
        build_option("--provenance", is_flag=True, help="Attach a statement of how the bundle was made (SLSA v1)."),
    ):
        function = option(function)
    return function


def specialize_option(function: F) -> F:
    """Add ``--specialize`` as the parameter ``specializations`` of ``aotpack.build``."""
    return build_option(
        "--specialize",
        "specializations",
        multiple=True,
        metavar="NAME=SIZE[,…]",
        callback=_sizes,
        help="Sizes to compile for where code is for fixed sizes (xla), by the names of dynamic_shapes. May be repeated.",
    )(function)


def _sizes(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> list[dict[str, int]]:
    found = []
    for text in values:
        pairs = [part.partition("=") for part in text.split(",")]
        if not all(name.strip() and size.strip().isdecimal() for name, _, size in pairs):
            raise click.BadParameter(f"{text!r} is not of the form batch=8 or batch=8,length=128.", context, option)
        found.append({name.strip(): int(size) for name, _, size in pairs})
    return found


def layout_of(out: str, *, directory: bool) -> Literal["file", "directory"]:
    """Return the form in which to write ``out``."""
    return "directory" if directory or out.endswith("/") else "file"


def progress_shown(*, verbose: bool) -> Progress:
    """Shows a build on stderr, with arguments of the Python API as options of the running command."""
    return Progress(stderr(), verbose=verbose, spelled=_spelled)


def _spelled(message: str) -> str:
    """Return a message with arguments of the Python API as options of the running command."""
    context = click.get_current_context(silent=True)
    return as_options(message, context.command if context else None)


def print_report(report: BuildReport, *, as_json: bool) -> None:
    """Print what the build made."""
    if as_json:
        print_json(report.to_json())
    else:
        stdout().print(_summary(report))


def _summary(report: BuildReport) -> Table:
    """Return what was made as a table. Warnings are on stderr already (:class:`Progress`)."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("bundle", plain(str(report.out)))
    table.add_row("size", size_text(report.size))
    table.add_row("digest", report.digest)
    table.add_row("targets", plain(", ".join(report.targets)))
    table.add_row("methods", plain(", ".join(report.methods)))
    stages = [f"{stage.name} {time_text(stage.seconds)}" for stage in report.stages]
    total = sum(stage.seconds for stage in report.stages)
    table.add_row("time", plain(f"{time_text(total)} ({', '.join(stages)})" if stages else time_text(total)))
    for note in report.notes:
        table.add_row("note", plain(_spelled(note), lines=True))
    return table

"""``aotpack train``: trains a bundle with its own optimizer, and goes on where an earlier run ended."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .console import device_option, json_option, plain, print_json, size_text, stderr, stdout, time_text, trust_option
from .importing import import_modules, import_option
from .paths import BundlePath

if TYPE_CHECKING:
    from ..training.loop import State, TrainReport

_SECONDS = 10.0
"""Between two lines where there is no terminal."""


@click.command("train", short_help="Train a bundle on data.")
@click.argument("bundle", type=BundlePath())
@click.option(
    "--data",
    required=True,
    metavar="FILE.safetensors|MODULE:FUNCTION",
    help="Tensors named as the arguments, with samples in the first dimension; or a function that yields the batches of an "
    "epoch, as tuples or dictionaries of arguments.",
)
@click.option(
    "-o", "--out", required=True, metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="The run's folder."
)
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--checkpoint-every", type=click.IntRange(min=1), default=1000, show_default=True, metavar="STEPS", help="Also at the end."
)
@click.option("--batch-size", type=click.IntRange(min=1), help="Default: the bundle's, else 32.")
@click.option("--steps-per-epoch", type=click.IntRange(min=1), help="End an epoch after so many batches.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the order of data and of torch.")
@click.option("--lr", type=float, help="Learning rate of all groups. Default: that of the build.")
@click.option(
    "--schedule",
    type=click.Choice(["constant", "linear", "cosine"]),
    default="constant",
    show_default=True,
    help="How the learning rate falls to 0.",
)
@click.option("--warmup", type=click.IntRange(min=0), default=0, metavar="STEPS", help="Steps over which it rises before.")
@click.option("--clip-grad-norm", type=click.FloatRange(min=0), metavar="NORM", help="Scale gradients to at most this norm.")
@click.option("--optimizer", default="", metavar="NAME", help="Which, if the bundle has several.")
@click.option("--log-every", type=click.IntRange(min=1), default=1, show_default=True, metavar="STEPS")
@click.option("--backend", metavar="TARGET", help="Run this target, not the best that fits.")
@device_option
@import_option
@trust_option
@json_option
def command(
    *,
    bundle: Path,
    backend: str | None,
    device: str | None,
    modules: tuple[str, ...],
    trust: str | tuple[str, ...] | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Train BUNDLE with the optimizer that it holds.

    DIR gets `checkpoint`, `metrics.jsonl` and an event file for TensorBoard. If it has a checkpoint, the run goes on from
    there, bit for bit. The loss is the result that is called `loss`, or the only scalar with a gradient.
    """
    import aotpack_loader

    from ..training.loop import Asked, train

    subclasses = import_modules(modules)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", aotpack_loader.BackendWarning)  # the report names the target
        model = aotpack_loader.load(bundle, backend=backend, device=device, trust=trust, subclasses=subclasses)
    with _shown(stderr()) as observer:
        report = train(Asked(bundle, **asked), model, observer)
    if as_json:
        print_json({**vars(report), "out": str(report.out), "checkpoint": str(report.checkpoint), "metrics": str(report.metrics)})
    else:
        stdout().print(_table(report))


@contextlib.contextmanager
def _shown(console: Console) -> Iterator[Line]:
    """Show progress: a line that changes on a terminal, else a line every few seconds."""
    if not console.is_terminal:
        yield Line(console, None)
        return
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(bar_width=18),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Line(console, progress)


class Line:
    """The progress of a run in a line: epoch, steps, loss, learning rate, steps in a second, memory."""

    def __init__(self, console: Console, progress: Progress | None) -> None:
        self._console, self._progress, self._last, self._epoch = console, progress, time.monotonic(), 0

    def begin(self, step: int, total: int | None, backend: str) -> None:
        if step:
            self._console.print(f"goes on after step {step}")
        if self._progress is not None:
            self._task = self._progress.add_task("", total=total, completed=step, epoch="", text=backend)

    def after(self, state: State) -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=state.step, epoch=f"{state.epoch}/{state.epochs}", text=text_of(state))
            return
        now = time.monotonic()
        if now - self._last >= _SECONDS or state.epoch != self._epoch or state.step == state.total:
            self._last, self._epoch = now, state.epoch
            self._console.print(f"epoch {state.epoch}/{state.epochs}  {text_of(state)}")


def text_of(state: State) -> str:
    """A state in words."""
    steps = f"{state.step}" if state.total is None else f"{state.step}/{state.total}"
    return f"{steps}  loss {state.loss:.4g}  lr {state.lr:.3g}  {state.steps_per_second:.3g}/s  {size_text(state.memory)}"


def _table(report: TrainReport) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    went_on = f", after {report.resumed} of an earlier run" if report.resumed else ""
    table.add_row("steps", f"{report.steps}{went_on}")
    if report.loss is not None:
        table.add_row("loss", f"{report.loss:.6g}")
    table.add_row("time", time_text(report.seconds))
    table.add_row("backend", plain(report.backend))
    table.add_row("checkpoint", plain(str(report.checkpoint)))
    table.add_row("metrics", plain(str(report.metrics)))
    return table

"""``aotpack run``: runs one training step of a bundle, to check that it works here and how fast it starts."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from rich.table import Table

from .console import device_option, json_option, plain, print_json, stdout, time_text, trust_option
from .importing import import_modules, import_option
from .paths import BundlePath

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class StepReport:
    """The results of one run. Times are in seconds. ``load`` begins after ``import torch``."""

    backend: str
    reason: str
    rejected: dict[str, str]
    method: str
    inputs: str
    loss: float
    losses: list[float]
    gradient_norm: float | None
    load: float
    first_step: float
    last_step: float


@click.command("run", short_help="Train a bundle for one step.")
@click.argument("bundle", type=BundlePath())
@click.option("--backend", metavar="TARGET", help="Run this target, not the best that fits.")
@device_option
@click.option("--method", default="", metavar="NAME", help="Call this method of the model, not the model itself.")
@click.option("--steps", type=click.IntRange(min=1), default=1, show_default=True, help="Steps of plain SGD.")
@click.option("--lr", type=float, default=0.01, show_default=True, help="Learning rate.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of torch and of random inputs.")
@click.option(
    "--check",
    type=click.Choice(["arguments", "full"]),
    default="arguments",
    show_default=True,
    help="full: check all assumptions of the build.",
)
@import_option
@trust_option
@json_option
def command(
    *,
    bundle: Path,
    backend: str | None,
    device: str | None,
    method: str,
    steps: int,
    lr: float,
    seed: int,
    check: Literal["arguments", "full"],
    modules: tuple[str, ...],
    trust: str | tuple[str, ...] | None,
    as_json: bool,
) -> None:
    """Load BUNDLE and train it for one step, on the recorded inputs or on random ones.

    The loss is the first floating-point scalar the model returns, else the sum of the means of its
    floating-point outputs.
    A method without gradients runs forward only.
    """
    report = _run(bundle, backend, device, trust, method, steps, lr, seed, check=check, modules=modules)
    if as_json:
        print_json(asdict(report))
    else:
        stdout().print(_table(report))


def _run(
    path: Path,
    backend: str | None,
    device: str | None,
    trust: str | tuple[str, ...] | None,
    function: str,
    steps: int,
    lr: float,
    seed: int,
    *,
    check: Literal["arguments", "full"],
    modules: tuple[str, ...],
) -> StepReport:
    import torch

    subclasses = import_modules(modules)
    start = time.perf_counter()
    import aotpack

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", aotpack.BackendWarning)  # the report has the same information
        model = aotpack.load(path, backend=backend, device=device, trust=trust, check=check, subclasses=subclasses)
    load = time.perf_counter() - start

    from aotpack_loader.replay import device_of, moved

    from ..measure.steps import call_as_built, inputs_of, method_of_steps

    info = model.aotpack
    method = method_of_steps(info.program, function)
    training = any(mode.training and mode.grad for mode in info.program.methods[method].serves)
    inputs = inputs_of(path, method, seed, subclasses)
    torch.manual_seed(seed)
    model.train(training)
    losses, norms, times = [], [], []
    args, kwargs = moved((inputs.args, inputs.kwargs), device_of(model))
    call = partial(call_as_built(model, method), *args, **kwargs)
    for _ in range(steps):
        start = time.perf_counter()
        loss, norm = _train_step(model, call, lr) if training else (_infer_step(call), None)
        times.append(time.perf_counter() - start)
        losses.append(loss)
        norms.append(norm)
    return StepReport(
        backend=info.backend,
        reason=info.reason,
        rejected=dict(info.rejected),
        method=method,
        inputs=inputs.source,
        loss=losses[0],
        losses=losses,
        gradient_norm=norms[0],
        load=load,
        first_step=times[0],
        last_step=times[-1],
    )


def _train_step(model: nn.Module, call: Callable[[], Any], lr: float) -> tuple[float, float]:
    import torch

    from aotpack_loader.runtime.memory import plain_tensors

    from ..measure.steps import loss_of

    loss = loss_of(call())
    if loss.requires_grad:  # nothing of some programs is trained
        loss.backward()
    parameters = [p for p in model.parameters() if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    dense = [gradient.to_dense() if gradient.layout != torch.strided else gradient for gradient in gradients]
    floating = [part for g in dense for part in plain_tensors(g) if part.is_floating_point()]
    norm = sum(float(torch.linalg.vector_norm(part)) ** 2 for part in floating) ** 0.5
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(gradient, alpha=lr)
            parameter.grad = None
    return _number(loss), norm


def _number(loss: Tensor) -> float:
    """Return the value of a loss.

    For a tensor subclass, which may have none, use its first inner tensor.
    """
    from aotpack_loader.runtime.memory import plain_tensors

    return float(next(plain_tensors(loss)).item())


def _infer_step(call: Callable[[], Any]) -> float:
    import torch

    from ..measure.steps import loss_of

    with torch.no_grad():
        return _number(loss_of(call()))


def _losses(losses: list[float]) -> str:
    """Return the losses of all steps; of many, the first and the last ones."""
    texts = [f"{loss:.6g}" for loss in losses]
    return ", ".join(texts if len(texts) <= 10 else [*texts[:3], f"… ({len(texts) - 6} more with --json)", *texts[-3:]])


def _table(report: StepReport) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("backend", plain(f"{report.backend} ({report.reason})"))
    for target, reason in report.rejected.items():
        table.add_row("", plain(f"not {target}: {reason}", "yellow"))
    table.add_row("inputs", report.inputs)
    table.add_row("loss", _losses(report.losses))
    if report.gradient_norm is not None:
        table.add_row("gradient", f"norm {report.gradient_norm:.6g}")
    table.add_row("load", time_text(report.load))
    table.add_row("first step", time_text(report.first_step))
    if len(report.losses) > 1:
        table.add_row("last step", time_text(report.last_step))
    return table

"""Runs of the model's Python on fake tensors beside the trace: what the graphs of one call do not tell of another.

A trace sees one call. Here the model runs a second time, and without gradients, and what it calls then is compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from aotpack_loader.errors import Problem, UnsupportedError

from .. import _torch_compat as compat
from . import watching
from .reachable import Snapshot


@dataclass(frozen=True)
class Trial:
    """Whether the model asks which tensors are the same, what version counters it moves, what Python objects it changes."""

    compares: bool
    touched: compat.Touched
    changed: tuple[str, ...]


@contextlib.contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Put back every Python value that the block changes in what ``model`` can reach."""
    snapshot = Snapshot(model)
    try:
        yield
    finally:
        snapshot.restore()


def rehearse(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trial:
    """Run the model twice, and see that the second run does what the first did.

    Raises:
        UnsupportedError: it reads Python values that it changes, or goes another way because of one.
    """
    with unchanged(model), watching.watched(model) as seen:
        first = Snapshot(model)
        steps, run = _run(model, args, kwargs)
        changed = first.changed()
        second = Snapshot(model)
        error = _other_second_run(steps, model, args, kwargs)
        counted = second.counted()
        changed |= second.changed()
    compat.refuse_changes(seen.changed | counted)
    if error is not None:
        raise error
    return Trial(seen.compares, run.touched, tuple(sorted(changed)))


def check_repeats(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run the model twice.

    Raises:
        UnsupportedError: the second run does not do what the first did.
    """
    with unchanged(model):
        error = _other_second_run(_run(model, args, kwargs)[0], model, args, kwargs)
    if error is not None:
        raise error


def depends_on_gradients(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the model does something else where the caller has turned gradients off, or turns them on itself."""
    with unchanged(model), compat.kept_state_changes(), torch.enable_grad():
        steps, _ = _run(model, args, kwargs)
    with unchanged(model), compat.kept_state_changes(), torch.no_grad():
        without, run = _run(model, args, kwargs)
    return run.records or watching.first_difference(steps, without) is not None


def _run(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], earlier: watching.Steps | None = None
) -> tuple[watching.Steps, compat.Rehearsed]:
    with watching.Steps(earlier) as steps:
        run = compat.rehearse(compat.fake_mode_with_shapes(), model, args, kwargs)
    steps.returned(run.result)
    return steps, run


def _other_second_run(
    first: watching.Steps, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> UnsupportedError | None:
    """Run the model again; the error where it does not do what it did first."""
    second = watching.Steps(first)
    cause: Exception | None = None
    try:
        with second:
            run = compat.rehearse(compat.fake_mode_with_shapes(), model, args, kwargs)
        second.returned(run.result)
    except Exception as error:  # the first run went through: what it left behind is in the way
        cause = error
    difference = watching.first_difference(first, second)
    if difference is None:
        return None
    where, one, other = difference
    refusal = UnsupportedError(
        "The model does something else when it is called again: it keeps Python values, and a bundle keeps tensors only.",
        [Problem(where, f"{one.call} at the first call, {other.call} at the second")],
        hint="Keep such a value in a buffer, and change it in place. If only the first call sets something up, call the model "
        "once before the build.",
    )
    refusal.__cause__ = cause
    return refusal

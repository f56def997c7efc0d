"""Runs the model repeatedly on fake tensors, to check that other calls do the same as the traced one.

A trace sees a single call. Here the model runs a second time, and also without gradients. Then the
calls are compared.
"""

from __future__ import annotations

import contextlib
import re
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from aotpack_loader.errors import BuildError, Problem, UnsupportedError

from ... import origin
from ..._torch.api import fake_tensors
from ..._torch.refusals import changes
from ..._torch.tracing import fake_run
from ..._torch.tracing.state_assignments import kept_state_changes
from . import python_state
from .snapshot import Snapshot


@dataclass(frozen=True)
class DryRun:
    """What a dry run found out about the model.

    ``compares``: whether it compares tensors by identity. ``touched``: the version counters that
    it moves. ``changed``: the Python objects that it changes. ``reads_nodes``: whether it reads
    nodes of autograd's graph (``grad_fn``).
    """

    compares: bool
    touched: fake_run.VersionedWrites
    changed: tuple[str, ...]
    reads_nodes: bool


@contextlib.contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Restore after the block all Python values reachable from ``model`` that the block changed."""
    snapshot = Snapshot(model)
    try:
        yield
    finally:
        snapshot.restore()


_OTHER_ARGUMENTS = re.compile(
    r"\(\) (got an unexpected keyword argument|got multiple values|takes .*positional argument|missing \d+ required)"
)
"""How Python says that a function takes other arguments."""


def refuse_if_broken(error: Exception) -> None:
    """Raise if an error shows that an analysis itself is broken.

    Refusals by the model or an operator are ignored. Errors of our own classes are refusals too. A
    missing name, a wrong call or a failed assertion in our code means that the analysis is broken.
    So does a name that torch's code does not find, and a call with other arguments than the function
    takes: the model's own calls succeeded with the example. The model itself may look up a name by
    a size (``getattr(self, f"head_{n}")``), so who asked for the name counts.

    Raises:
        BuildError: the analysis is broken. A safety analysis must not continue as if its result
            were unknown.
    """
    if type(error).__module__.startswith("aotpack"):
        return
    frames = traceback.extract_tb(error.__traceback__)
    while frames and frames[-1].name == "__getattr__":
        frames.pop()
    innermost = frames[-1].filename if frames else ""
    lost = isinstance(error, (AttributeError, NameError, ImportError))
    wrong = lost or isinstance(error, (TypeError, KeyError, AssertionError))
    called_wrongly = isinstance(error, TypeError) and _OTHER_ARGUMENTS.search(str(error)) is not None
    if (wrong and origin.is_ours(innermost)) or ((lost or called_wrongly) and origin.is_torch(innermost)):
        raise BuildError(
            "An analysis of sizes and strides failed, so the bundle might be wrong for some of them.",
            [Problem(f"{innermost}:{frames[-1].lineno}", f"{type(error).__name__}: {error}")],
            hint="This is a fault of aotpack, or this torch is not supported. Please report it. Static sizes may build.",
        ) from error


def run_on_fake_tensors(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> DryRun:
    """Run the model twice, and check that the second run does what the first did.

    If the second run reads a tensor that the first left in a cache, both runs are repeated. They
    then both find it there.

    Raises:
        UnsupportedError: the model reads Python values that it changes, or does something else
            because of one.
    """
    try:
        return _on_fake_tensors(model, args, kwargs)
    except UnsupportedError as error:
        if not any(python_state.KEPT in problem.message for problem in error.problems):
            raise
    return _on_fake_tensors(model, args, kwargs)


def _on_fake_tensors(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> DryRun:
    with unchanged(model), python_state.watched(model) as seen:
        first, steps = Snapshot(model), python_state.Steps()
        run = _run(steps, model, args, kwargs)
        changed = first.changed()
        second = Snapshot(model)
        error = _repeat_error(steps, model, args, kwargs)
        counted = second.counted()
        changed |= second.changed()
    changes.refuse_changes(seen.changed | counted)
    if error is not None:
        raise error
    return DryRun(seen.compares, run.touched, tuple(sorted(changed)), run.reads_nodes)


def check_repeats(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run the model twice, and check that the second run does what the first did.

    Raises:
        UnsupportedError: the second run does something else.
    """
    steps = python_state.Steps()
    with unchanged(model):
        _run(steps, model, args, kwargs)
        error = _repeat_error(steps, model, args, kwargs)
    if error is not None:
        raise error


def depends_on_gradients(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the model does something else if the caller has turned gradients off, or turns them on by itself."""
    steps, without = python_state.Steps(), python_state.Steps()
    with warnings.catch_warnings(action="ignore"):  # the model's own, about calls that nobody made
        with unchanged(model), kept_state_changes(model), torch.enable_grad():
            _run(steps, model, args, kwargs)
        with unchanged(model), kept_state_changes(model), torch.no_grad():
            run = _run(without, model, args, kwargs)
    return run.records or python_state.first_difference(steps, without) is not None


def _run(steps: python_state.Steps, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fake_run.FakeRun:
    """Run the model on fake tensors, and record its steps in ``steps``, up to an error if there is one."""
    run = fake_run.run_on_fake_tensors(fake_tensors.fake_mode_with_shapes(), model, args, kwargs, watch=steps)
    steps.returned(run.result)
    return run


def _repeat_error(
    first: python_state.Steps, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> UnsupportedError | None:
    """Run the model again. Return an error if it does something else than in the first run."""
    second = python_state.Steps(first)
    cause: Exception | None = None
    try:
        _run(second, model, args, kwargs)
    except Exception as error:  # the first run succeeded, so the state that it left causes this error
        cause = error
    difference = python_state.first_difference(first, second)
    if difference is None:
        return None
    where, one, other = difference
    refusal = UnsupportedError(
        "The model acts differently when it is called again: it keeps Python values, and a bundle keeps tensors only.",
        [Problem(where, f"{one.call} at the first call, {other.call} at the second")],
        hint="Keep such a value in a buffer, and change it in place. If only the first call sets something up, "
        "build with warm_up=True.",
    )
    refusal.__cause__ = cause
    return refusal

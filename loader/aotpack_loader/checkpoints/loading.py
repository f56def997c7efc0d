"""``load_checkpoint``: everything is compared first, and only what fits as a whole is applied."""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from ..devices.generator import exchange_random_state
from ..errors import AotpackError, CheckpointError, CorruptBundleError, Problem
from .document import CheckpointDocument, SavedOptimizer, SavedScheduler
from .folder import OpenedCheckpoint, dtype_name, read_folder
from .saving import NamedState, by_name, kind_of


class Restored(NamedTuple):
    """What a checkpoint held beside the state that was restored: its step count, and what its writer added."""

    step: int
    extra: dict[str, Any]


def load(
    digest: str,
    module: nn.Module,
    path: str | os.PathLike[str],
    optimizer: Any,
    scheduler: Any,
    assigned: Collection[str],
    same_bundle: bool,
) -> Restored:
    """Load a checkpoint for a module of the bundle ``digest``; see ``LoadInfo.load_checkpoint``.

    ``assigned`` are buffers to which calls assign tensors, of any sizes.
    """
    opened = read_folder(path)
    document = opened.document
    if same_bundle and document.bundle != digest:
        raise CheckpointError(
            f"The checkpoint {os.fspath(path)!r} is of another bundle.",
            [Problem("", f"it is of {document.bundle}, and the model was loaded from {digest}")],
            hint="Load that bundle. For another build of the same model pass same_bundle=False: names and sizes are compared.",
        )
    named, extra = NamedState(module), opened.items(document.extra)
    problems = [*_model_problems(document, named, assigned)]
    undo: list[Callable[[], object]] = []
    try:
        if optimizer is not None:
            optimizers = by_name(optimizer, "optimizer", "param_groups")
            problems += _unknown("optimizer", document.optimizers, optimizers)
            for name in filter(document.optimizers.__contains__, optimizers):
                problems += _load_optimizer(name, document.optimizers[name], optimizers[name], named, opened, undo)
        if scheduler is not None:
            schedulers = by_name(scheduler, "scheduler")
            problems += _unknown("scheduler", document.schedulers, schedulers)
            for name in filter(document.schedulers.__contains__, schedulers):
                problems += _load_scheduler(name, document.schedulers[name], schedulers[name], opened, undo)
        if problems:
            raise CheckpointError(f"The checkpoint {os.fspath(path)!r} does not fit.", problems)
        _set_random_state(path, opened, named.devices(), undo)
    except BaseException:
        for step in reversed(undo):
            step()
        raise
    _fill(named, opened, assigned)
    return Restored(document.step, extra)


def _model_problems(document: CheckpointDocument, named: NamedState, assigned: Collection[str]) -> Iterator[Problem]:
    """How the tensors of a checkpoint differ from those of the module."""
    stored = {name: name for name in document.model} | document.tied
    own = {name: name for name in named.tensors} | named.tied
    yield from (Problem(name, "is missing in the checkpoint") for name in own if name not in stored)
    yield from (Problem(name, "is in the checkpoint, and not in the model") for name in stored if name not in own)
    for name, tensor in named.tensors.items():
        entry = document.model.get(stored.get(name, ""))
        if entry is None:
            continue
        if entry.dtype != dtype_name(tensor) or (entry.shape != [*tensor.shape] and name not in assigned):
            yield Problem(name, f"is {dtype_name(tensor)}{[*tensor.shape]}, the checkpoint has {entry.dtype}{entry.shape}")
    for name, first in named.tied.items():
        if name in stored and first in stored and stored[name] != stored[first]:
            yield Problem(name, f"is one tensor with {first}, the checkpoint has two")


def _unknown(kind: str, saved: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Problem]:
    yield from (
        Problem(name, f"is no {kind} of the checkpoint; it has {', '.join(saved) or 'none'}") for name in given.keys() - saved
    )
    yield from (Problem(name, f"is a {kind} of the checkpoint, and was not given") for name in saved.keys() - given)


def _load_optimizer(
    name: str,
    saved: SavedOptimizer,
    optimizer: Any,
    named: NamedState,
    opened: OpenedCheckpoint,
    undo: list[Callable[[], object]],
) -> list[Problem]:
    """Load the state of an optimizer, or return what does not fit."""
    problems = []
    if kind_of(optimizer) != saved.kind:
        problems.append(Problem(name, f"is of the class {kind_of(optimizer)}, the checkpoint has {saved.kind}"))
    groups = [[named.name_of.get(p, "") for p in group["params"]] for group in optimizer.param_groups]
    if len(groups) != len(saved.groups):
        problems.append(Problem(name, f"has {len(groups)} groups, the checkpoint has {len(saved.groups)}"))
    for i, (own, group) in enumerate(zip(groups, saved.groups, strict=False)):
        if own != group.parameters:
            others = sorted(set(own) ^ set(group.parameters))
            text = f"has other parameters: {', '.join(others[:5])}" if others else "has its parameters in another order"
            problems.append(Problem(f"{name}.param_groups[{i}]", text))
    listed = {parameter for group in saved.groups for parameter in group.parameters}
    problems += [
        Problem(f"{name}.{p}", "has state in the checkpoint, and is in none of its groups") for p in saved.state.keys() - listed
    ]
    if problems:
        return problems
    numbers = {parameter: i for i, parameter in enumerate(parameter for group in groups for parameter in group)}
    state = {numbers[p]: opened.items(values) for p, values in saved.state.items()}
    first = 0
    described = []
    for group in saved.groups:
        described.append({**opened.items(group.options), "params": [*range(first, first + len(group.parameters))]})
        first += len(group.parameters)
    before = {"state": optimizer.state, "param_groups": optimizer.param_groups}
    if hasattr(optimizer, "skipped"):
        before["skipped"] = optimizer.skipped
        optimizer.skipped = saved.skipped
    kept = dict(optimizer.state), [*optimizer.param_groups]

    def restore() -> None:
        before["state"].clear()
        before["state"].update(kept[0])
        before["param_groups"][:] = kept[1]
        vars(optimizer).update(before)

    undo.append(restore)
    try:
        optimizer.load_state_dict({"state": state, "param_groups": described})
    except AotpackError as error:
        return [*error.problems] or [Problem(name, error.summary)]
    except (KeyError, TypeError, ValueError) as error:
        return [Problem(name, f"{type(error).__name__}: {error}")]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for i, values in state.items():  # torch converts state to the element type of its parameter
        held = optimizer.state[parameters[i]]
        held.update({k: v for k, v in values.items() if isinstance(v, torch.Tensor) and held[k].dtype is not v.dtype})
    return []


def _load_scheduler(
    name: str, saved: SavedScheduler, scheduler: Any, opened: OpenedCheckpoint, undo: list[Callable[[], object]]
) -> list[Problem]:
    """Load the numbers of a scheduler, or return what does not fit."""
    if type(scheduler).__name__ != saved.kind:
        return [Problem(name, f"is of the class {type(scheduler).__name__}, the checkpoint has {saved.kind}")]
    before = dict(scheduler.state_dict())
    # Releases of torch differ in what schedulers note for themselves.
    if others := [key for key in sorted(before.keys() ^ saved.state.keys()) if not key.startswith("_")]:
        return [Problem(name, f"has other numbers than the checkpoint: {', '.join(others)}")]
    found = opened.items(saved.state)
    if others := [key for key in sorted(before) if key in found and not _is_like(found[key], before[key])]:
        return [Problem(name, f"has values of other kinds than the checkpoint: {', '.join(others)}")]
    undo.append(lambda: scheduler.load_state_dict(before))
    try:
        scheduler.load_state_dict(found)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        return [Problem(name, f"{type(error).__name__}: {error}")]
    return []


def _is_like(found: Any, own: Any) -> bool:
    """Whether a value of a checkpoint is of the kind that a scheduler has: a number, a text, or the same collection."""
    if isinstance(own, Mapping):
        return isinstance(found, Mapping) and all(_is_like(found[key], own[key]) for key in own.keys() & found.keys())
    if isinstance(own, (list, tuple)):
        return isinstance(found, (list, tuple)) and (
            not own or all(_is_like(value, own[min(i, len(own) - 1)]) for i, value in enumerate(found))
        )
    kind = next((kind for kind in (bool, (int, float), str, torch.Tensor) if isinstance(own, kind)), object)
    return isinstance(found, kind) and (own is None or isinstance(found, bool) == isinstance(own, bool))


def _set_random_state(
    path: str | os.PathLike[str],
    opened: OpenedCheckpoint,
    devices: Mapping[str, torch.device],
    undo: list[Callable[[], object]],
) -> None:
    """Set the generators of torch, Python and NumPy. That of a kind of device of which the checkpoint has none stays as it is."""
    before = random.getstate()
    undo.append(lambda: random.setstate(before))
    document = opened.document
    try:
        random.setstate(opened.items({"": document.python_random})[""])
        if (held := document.numpy_random) is not None and (numpy := _numpy()):
            numpy_before = numpy.random.get_state()
            undo.append(lambda: numpy.random.set_state(numpy_before))
            numpy.random.set_state(("MT19937", held.key, held.pos, int(held.has_gauss), float(held.gauss.value)))
        states = {kind: document.device_generators[kind] for kind in document.device_generators.keys() & devices}
        for device, state in ((torch.device("cpu"), document.generator), *((devices[k], s) for k, s in states.items())):
            replaced = exchange_random_state(torch.frombuffer(bytearray(state), dtype=torch.uint8), device)
            undo.append(partial(exchange_random_state, replaced, device))
    except (CorruptBundleError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"The checkpoint {os.fspath(path)!r} is damaged: it has no state of a generator.") from error


def _numpy() -> Any:
    """NumPy; None where it is not installed, so that nobody draws from its generator."""
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None


@torch.no_grad()
def _fill(named: NamedState, opened: OpenedCheckpoint, assigned: Collection[str]) -> None:
    """Copy the tensors of a checkpoint, which fit, into those of the module."""
    for name, target in named.tensors.items():
        value = opened.model[opened.document.tied.get(name, name)]
        if name in assigned:
            holder, key = named.holders[name]
            holder._buffers[key] = value.clone().to(target.device)
        else:
            target.copy_(value)

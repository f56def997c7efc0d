"""``save_checkpoint``: what a checkpoint holds is collected at once, and written here or in a thread."""

from __future__ import annotations

import atexit
import os
import random
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..devices.generator import has_generator, random_state
from ..errors import CheckpointError, Problem
from .document import (
    CheckpointDocument,
    Encoder,
    NumpyGenerator,
    SavedGroup,
    SavedOptimizer,
    SavedScheduler,
    TensorEntry,
    as_float,
)
from .folder import checked_target, dtype_name, encoded, write_folder


class NamedState:
    """Parameters and buffers of a module as they are: by their first names, and by further names of the same tensor."""

    def __init__(self, module: nn.Module) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.holders: dict[str, tuple[nn.Module, str]] = {}
        self.tied: dict[str, str] = {}
        self.transient: list[str] = []
        self.computed: list[str] = []
        """Modules with an extra state of their own, which is no tensor."""
        first: dict[torch.Tensor, str] = {}
        for path, one in module.named_modules(remove_duplicate=False):
            if type(one).get_extra_state is not nn.Module.get_extra_state:
                self.computed.append(path)
            for key, value in (*one._parameters.items(), *one._buffers.items()):
                if value is None:
                    continue
                name = f"{path}.{key}" if path else key
                if value in first:
                    self.tied[name] = first[value]
                else:
                    first[value] = name
                    self.tensors[name], self.holders[name] = value, (one, key)
                if key in one._non_persistent_buffers_set:
                    self.transient.append(name)
        self.name_of = first

    def devices(self) -> dict[str, torch.device]:
        """The devices of the tensors that have generators of their own, one of each kind."""
        found = {tensor.device.type: tensor.device for tensor in self.tensors.values()}
        return {kind: device for kind, device in found.items() if has_generator(device)}


class Saving:
    """A checkpoint that is written, in a thread or already."""

    def __init__(self, target: Path) -> None:
        self.path = target
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def wait(self) -> None:
        """Wait until the checkpoint is there.

        Raises:
            CheckpointError: it could not be written. It is raised once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            atexit.unregister(self._report)
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def done(self) -> bool:
        """Whether nothing is being written any more."""
        return self._thread is None or not self._thread.is_alive()

    def _start(self, *arguments: Any) -> None:
        def run() -> None:
            try:
                write_folder(*arguments)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="aotpack-checkpoint")  # no daemon: the process ends after it
        self._thread.start()
        atexit.register(self._report)

    def _report(self) -> None:
        """Show the error that nobody waited for, when the process ends."""
        try:
            self.wait()
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)


def save(
    digest: str,
    module: nn.Module,
    path: str | os.PathLike[str],
    optimizer: Any,
    scheduler: Any,
    step: int,
    extra: Mapping[str, Any],
    asynchronous: bool,
    shard_bytes: int,
) -> Saving:
    """Save a checkpoint of the bundle ``digest``; see ``LoadInfo.save_checkpoint``."""
    target = checked_target(path)
    named, encoder = NamedState(module), Encoder()
    problems = [Problem(name, "has an extra state, which is no tensor") for name in named.computed]
    problems += [Problem(name, f"is {_kind(t)}") for name, t in named.tensors.items() if not _is_plain(t)]
    saved = {name: _optimizer(name, one, named, encoder) for name, one in by_name(optimizer, "optimizer", "param_groups").items()}
    given = by_name(scheduler, "scheduler")
    numbers = {name: SavedScheduler(type(one).__name__, encoder.mapping(one.state_dict(), name)) for name, one in given.items()}
    if not isinstance(extra, Mapping):
        raise CheckpointError(f"extra= takes a dictionary with names, and no {type(extra).__name__}.")
    others = encoder.mapping(extra, "extra")
    problems += encoder.problems
    problems += [Problem(name, f"is {_kind(t)}") for name, t in encoder.tensors.items() if not _is_plain(t)]
    if problems:
        hint = "For sharded parameters use torch.distributed.checkpoint." if any("DTensor" in p.message for p in problems) else ""
        raise CheckpointError("The state cannot be stored in a checkpoint.", problems, hint=hint)
    document = CheckpointDocument(
        version=1,
        bundle=digest,
        step=step,
        files=[],
        model={name: TensorEntry(dtype_name(t), [*t.shape]) for name, t in named.tensors.items()},
        values={name: TensorEntry(dtype_name(t), [*t.shape], _strides(t)) for name, t in encoder.tensors.items()},
        generator=bytes(torch.get_rng_state().tolist()),
        device_generators={kind: bytes(random_state(device).tolist()) for kind, device in named.devices().items()},
        python_random=encoder.encode(random.getstate(), "random"),
        numpy_random=_numpy_generator(),
        tied=named.tied,
        transient=named.transient,
        optimizers=saved,
        schedulers=numbers,
        extra=others,
    )
    encoded(document)  # now, and not in a thread
    groups = {"model": named.tensors, "values": encoder.tensors}
    saving = Saving(target)
    if asynchronous:
        copies = {group: {name: _copy(t) for name, t in tensors.items()} for group, tensors in groups.items()}
        saving._start(target, document, copies, shard_bytes)
    else:
        write_folder(target, document, groups, shard_bytes)
    return saving


def by_name(given: Any, name: str, *needed: str) -> Mapping[str, Any]:
    """One object or several by name, as several by name. Each has a ``state_dict()``, and what else is ``needed``.

    Raises:
        CheckpointError: one has not.
    """
    found: Mapping[str, Any] = {} if given is None else given if isinstance(given, Mapping) else {name: given}
    others = [(key, one) for key, one in found.items() if not all(hasattr(one, need) for need in ("state_dict", *needed))]
    if others:
        problems = [Problem(str(key), f"is a {type(one).__name__}, and no {name}") for key, one in others]
        raise CheckpointError(f"{name}= takes one {name}, or a dictionary of several.", problems)
    return found


def kind_of(optimizer: Any) -> str:
    """The name of an optimizer's class; for one of a bundle that of its class in the original."""
    return str(getattr(optimizer, "_aotpack_kind", type(optimizer).__name__))


def _numpy_generator() -> NumpyGenerator | None:
    """The state of NumPy's global generator; None if nobody has imported NumPy.

    Raises:
        CheckpointError: it is another generator than NumPy's own.
    """
    if (numpy := sys.modules.get("numpy")) is None:
        return None
    found = numpy.random.get_state(legacy=False)
    if found["bit_generator"] != "MT19937":
        raise CheckpointError(f"A checkpoint holds no state of {found['bit_generator']}, the generator of numpy.random.")
    state = found["state"]
    return NumpyGenerator(state["key"].tolist(), int(state["pos"]), bool(found["has_gauss"]), as_float(found["gauss"]))


def _optimizer(name: str, optimizer: Any, named: NamedState, encoder: Encoder) -> SavedOptimizer:
    """What an optimizer holds, with names for its parameters."""
    names: list[str] = []
    groups: list[SavedGroup] = []
    for i, group in enumerate(optimizer.param_groups):
        found = [named.name_of.get(parameter, "") for parameter in group["params"]]
        if unknown := found.count(""):
            encoder.problems.append(Problem(f"{name}.param_groups[{i}]", f"has {unknown} parameters that are not the model's"))
        options = {key: value for key, value in group.items() if key != "params"}
        groups.append(SavedGroup(found, encoder.mapping(options, f"{name}.param_groups.{i}")))
        names += found
    if calls := getattr(optimizer, "calls", 0):
        text = f"{calls} calls of train_step have no step yet, and their gradients are in no checkpoint: save after a step"
        encoder.problems.append(Problem(name, text))
    state = optimizer.state_dict()["state"]
    return SavedOptimizer(
        kind_of(optimizer),
        groups,
        {names[i]: encoder.mapping(values, f"{name}.{names[i]}") for i, values in state.items()},
        getattr(optimizer, "skipped", 0),
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor.detach()) is torch.Tensor and tensor.layout is torch.strided


def _kind(tensor: torch.Tensor) -> str:
    return f"a {type(tensor).__name__} of {tensor.layout}, which a checkpoint does not hold"


def _strides(tensor: torch.Tensor) -> list[int]:
    """The strides of a tensor that is dense in another order of its dimensions, else nothing."""
    kept = torch.empty_like(tensor, device="meta").stride()
    return [] if tensor.is_contiguous() or kept != tensor.stride() else [*kept]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU that later steps do not change."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())

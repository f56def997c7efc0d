"""Traces models that assign results to their buffers: spiking neurons, stateful cells, running statistics.

Such a buffer may be state with a history: a later backward goes on into the call that made it. So it is passed like
an argument, in a dictionary that the call changes (:mod:`.containers`). The loader passes the module's own buffers,
and makes the dictionary's new items its buffers.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from aotpack_loader.format.interface import ASSIGNED

from .._torch.api import fake_tensors, messages
from .._torch.tracing import fake_run
from .._torch.tracing.state_assignments import kept_state_changes, passed_as_arguments
from .containers import replaced_forward
from .dry_run import repeat


def find(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Run the model on fake tensors, and return the names of the buffers to which it assigns tensors.

    Empty if that run fails, or if one of them has several names. A front end reports the error.
    """
    names_of = Counter(id(buffer) for _, buffer in model.named_buffers(remove_duplicate=False))
    with repeat.unchanged(model), kept_state_changes(model, only_names=True) as names, messages.quiet_torch_logs():
        try:
            fake_run.run_on_fake_tensors(fake_tensors.fake_mode_with_shapes(), model, args, kwargs, strict=False)
        except Exception:  # a front end reports the error
            return []
        found = sorted(names)
    return [] if any(names_of[id(model.get_buffer(name))] > 1 for name in found) else found


def example(model: torch.nn.Module, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """The dictionary of an example call: copies of the buffers, which require gradients if they can."""
    buffers = {name: model.get_buffer(name).detach().clone() for name in names}
    return {name: buffer.requires_grad_(buffer.is_floating_point() or buffer.is_complex()) for name, buffer in buffers.items()}


@contextlib.contextmanager
def passed(model: torch.nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Let the model take its buffers ``names`` as the keyword argument :data:`ASSIGNED`, a dictionary that it changes."""
    forward = model.forward

    def with_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = kwargs.pop(ASSIGNED)
        with _without(holders):
            for name, (module, key) in holders.items():
                module._buffers[key] = state[name]
            result = forward(*args, **kwargs)
            for name, (module, key) in holders.items():
                state[name] = module._buffers[key]
        return result

    holders = _holders(model, names)
    keys = {(id(module), key) for module, key in holders.values()}
    with passed_as_arguments(keys), replaced_forward(model, with_state, keywords=[ASSIGNED]):
        yield


@contextlib.contextmanager
def unlisted(model: torch.nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Take the buffers ``names`` from their modules, so that a trace does not take them as state, too."""
    with _without(_holders(model, names)):
        yield


_Holders = dict[str, tuple[torch.nn.Module, str]]


def _holders(model: torch.nn.Module, names: Sequence[str]) -> _Holders:
    """The module of each buffer, and its name there."""
    return {name: (model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names}


@contextlib.contextmanager
def _without(holders: _Holders) -> Iterator[None]:
    modules = {id(module): (module, dict(module._buffers)) for module, _ in holders.values()}
    for module, key in holders.values():
        module._buffers.pop(key, None)
    try:
        yield
    finally:
        for module, before in modules.values():
            module._buffers.clear()
            module._buffers.update(before)

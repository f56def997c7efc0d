"""``load_state_dict``, all or nothing: checks entries after hooks have renamed them, and before anything changes."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from .._torch_compat import has_post_load_hooks, load_hooks, without_load_hooks
from ..errors import Problem, StateError


class Prepared(NamedTuple):
    """A state dict after the pre-hooks of all modules, with the names and errors that the hooks reported."""

    entries: Mapping[str, Any]
    missing: list[str]
    unexpected: list[str]
    errors: list[str]
    hooked: list[nn.Module]


@contextlib.contextmanager
def checked(module: nn.Module, state_dict: Mapping[str, Any], *, strict: bool, assign: bool) -> Iterator[Mapping[str, Any]]:
    """The entries for ``nn.Module.load_state_dict`` to load inside the block. Its pre-hooks have already run.

    If there are hooks that run afterwards, torch itself reports missing and unexpected entries, to them.

    Raises:
        StateError: lists every missing, unexpected or misshaped entry; nothing was changed.
    """
    prepared = _prepared(module, state_dict, assign=assign)
    if problems := list(_problems(module, prepared, strict=strict and not has_post_load_hooks(module))):
        raise StateError("The state dict does not fit this bundle.", problems)
    with without_load_hooks(prepared.hooked):
        yield prepared.entries


def _prepared(module: nn.Module, state_dict: Mapping[str, Any], *, assign: bool) -> Prepared:
    """Run the pre-hooks in torch's order: a module's before those of its submodules, which see their own entries."""
    hooks = dict(load_hooks(module))
    if not hooks:
        return Prepared(state_dict, [], [], [], [])
    metadata = getattr(state_dict, "_metadata", None) or {}
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []

    def run(module: nn.Module, entries: dict[str, Any], prefix: str) -> dict[str, Any]:
        local = {**metadata.get(prefix[:-1], {}), **({"assign_to_params_buffers": True} if assign else {})}
        for hook in list(hooks.get(module, {}).values()):
            hook(entries, prefix, local, True, missing, unexpected, errors)
        found = OrderedDict(entries)
        for name, child in module._modules.items():
            if child is not None:
                below = f"{prefix}{name}."
                own = OrderedDict((key, found.pop(key)) for key in list(found) if key.startswith(below))
                found.update(run(child, own, below))
        return found

    entries: Any = run(module, OrderedDict(state_dict), "")
    if metadata:
        entries._metadata = metadata
    return Prepared(entries, missing, unexpected, errors, list(hooks))


def _problems(module: nn.Module, prepared: Prepared, *, strict: bool) -> Iterator[Problem]:
    own, entries = _own(module), prepared.entries
    for name, value in entries.items():
        if name not in own:
            continue
        if not isinstance(value, torch.Tensor):
            yield Problem(name, f"expected a tensor, got {type(value).__name__}")
        elif value.shape != own[name].shape and not (own[name].dim() == 0 and value.shape == (1,)):  # torch takes it
            yield Problem(name, f"expected shape {list(own[name].shape)}, got {list(value.shape)}")
    yield from (Problem("", message) for message in prepared.errors)
    if strict:
        absent = [name for name in own if name not in entries and not _is_optional(module, name, entries)]
        unknown = [name for name in entries if name not in own]
        yield from (Problem(name, "missing") for name in dict.fromkeys([*absent, *prepared.missing]))
        yield from (Problem(name, "unexpected") for name in dict.fromkeys([*unknown, *prepared.unexpected]))


def _own(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by their names in torch. Hooks may use other names in a state dict."""
    own: dict[str, torch.Tensor] = {}
    for prefix, one in module.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        transient = one._non_persistent_buffers_set
        held = {**one._parameters, **{name: value for name, value in one._buffers.items() if name not in transient}}
        own |= {dot + name: value for name, value in held.items() if value is not None}
    return own


def _is_optional(module: nn.Module, name: str, entries: Mapping[str, Any]) -> bool:
    """Whether this is BatchNorm's counter, which checkpoints before its version 2 lack. torch accepts that."""
    path, _, key = name.rpartition(".")
    version = (getattr(entries, "_metadata", None) or {}).get(path, {}).get("version")
    counted = key == "num_batches_tracked" and (version is None or version < 2)
    return counted and isinstance(module.get_submodule(path), nn.modules.batchnorm._NormBase)

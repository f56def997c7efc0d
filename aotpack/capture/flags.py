"""Finds the submodules whose mode a method depends on: those whose ``training`` the model reads."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from .._torch.api import fake_tensors
from .._torch.api.module_attributes import recorded_modes
from .._torch.tracing import fake_run
from .dry_run import repeat
from .functions import MethodModule


def flags_read(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, bool]:
    """Return the current modes of the submodules that read their mode, by path.

    For modules of torch, their code shows whether they read their mode. If there are other
    modules, the model runs on fake tensors, which shows what modes they read, their own and those
    of modules of torch. If that run fails, every module's mode is assumed to be read. A method of
    the model calls few modules of torch, so that run also shows which.
    """
    below = {name: module for name, module in model.named_modules() if name}
    others = {id(module) for module in model.modules() if not _is_torch_module(module)}
    try:
        recorded = _recorded_in_a_run(model, args, kwargs) if others else set()
    except Exception:  # it was traced, but fails on fake tensors
        return {name: module.training for name, module in below.items()}
    read = {module for module, by_model in recorded if by_model or module in others}
    called = {module for module, _ in recorded} if isinstance(model, MethodModule) else set(map(id, below.values()))
    return {
        name: module.training
        for name, module in below.items()
        if id(module) in read or (_is_torch_module(module) and id(module) in called and _reads(module))
    }


def _recorded_in_a_run(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[tuple[int, bool]]:
    """Return the ids of modules whose mode is read, and whether the model's code reads it."""
    with repeat.unchanged(model), recorded_modes() as recorded:
        fake_run.run_on_fake_tensors(fake_tensors.fake_mode_with_shapes(), model, args, kwargs, strict=False)
    return recorded


def _is_torch_module(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _reads(module: nn.Module) -> bool:
    """Whether the code of a torch module reads its mode.

    A dropout with probability 0 does the same in both modes.
    """
    if isinstance(module, nn.modules.dropout._DropoutNd) and module.p == 0:
        return False
    if isinstance(module, nn.RNNBase) and module.dropout == 0:
        return False
    values = [value for kind in type(module).__mro__ if kind is not nn.Module for value in vars(kind).values()]
    functions = [inspect.unwrap(value) for value in values if isinstance(value, FunctionType)]  # a build replaces some
    return any("training" in _names(function.__code__) for function in functions)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)

"""Which submodules' modes a method depends on: those whose ``training`` is read while the model runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from .. import _torch as compat
from .dry_run import repeat


def flags_read(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, bool]:
    """The modes of the submodules that matter, by path, in the mode that the model is in now.

    Modules of torch tell by their code whether they read theirs. Where there are others, the model is run on fake tensors. If
    that fails, the modes of all others are taken to matter.
    """
    below = {name: module for name, module in model.named_modules() if name}
    others = {id(module) for module in below.values() if not _is_torchs(module)}
    read = others
    if others:
        with contextlib.suppress(Exception), repeat.unchanged(model), _noted() as noted:
            compat.run_on_fake_tensors(compat.fake_mode_with_shapes(), model, args, kwargs, strict=False)
            read = noted
    return {
        name: module.training for name, module in below.items() if (_reads(module) if _is_torchs(module) else id(module) in read)
    }


def _is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _reads(module: nn.Module) -> bool:
    """Whether the code of a module of torch asks for its mode. A dropout of nothing is the same in both."""
    if isinstance(module, nn.modules.dropout._DropoutNd) and module.p == 0:
        return False
    if isinstance(module, nn.RNNBase) and module.dropout == 0:
        return False
    functions = [value for kind in type(module).__mro__ if kind is not nn.Module for value in vars(kind).values()]
    return any("training" in _names(function.__code__) for function in functions if isinstance(function, FunctionType))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@contextlib.contextmanager
def _noted() -> Iterator[set[int]]:
    """The modules whose ``training`` is read in the block: a descriptor of the class comes before what a module holds."""
    read: set[int] = set()

    class Training:
        def __get__(self, module: nn.Module | None, owner: type) -> Any:
            if module is None or "training" not in vars(module):
                raise AttributeError("training")
            read.add(id(module))
            return vars(module)["training"]

        def __set__(self, module: nn.Module, value: bool) -> None:
            vars(module)["training"] = value

    nn.Module.training = Training()  # type: ignore[assignment]
    try:
        yield read
    finally:
        del nn.Module.training

"""Records which module runs while AOTAutograd traces a model's Python, as other front ends do by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.fx import traceback
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from .building import builds

_FIELD = "nn_module_stack"


@contextmanager
def recorded_modules(model: nn.Module) -> Iterator[None]:
    """Give each traced node the stack of modules that run: ``nn_module_stack``, with paths from ``model``."""
    paths = {module: path for path, module in model.named_modules()}
    stacks: list[Any] = []

    def enter(module: nn.Module, _: Any) -> None:
        if not builds():  # the hooks are there for all threads
            return
        meta = traceback.get_current_meta()
        before = meta.get(_FIELD)
        stacks.append(before)
        if module in paths:
            stack = dict(before or {})
            meta[_FIELD] = stack | {str(len(stack)): (paths[module], type(module))}

    def leave(*_: Any) -> None:
        if not builds():
            return
        meta = traceback.get_current_meta()
        if (before := stacks.pop()) is None:
            meta.pop(_FIELD, None)
        else:
            meta[_FIELD] = before

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

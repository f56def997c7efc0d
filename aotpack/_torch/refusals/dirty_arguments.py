"""Rejects an ``autograd.Function`` that marks an argument of the model as dirty: its gradient would
be lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from ..api.counting import count_call
from ..api.patching import hooked
from .gradient_writes import definition


class DirtyArgumentError(Exception):
    """An ``autograd.Function`` marks an argument of the model as dirty; ``line`` is its source
    line, if known.
    """

    def __init__(self, line: str) -> None:
        super().__init__("writes to an argument and marks it as dirty (ctx.mark_dirty), so its gradient would be lost")
        self.line = line


class DirtyArguments:
    """Records the tensors that are marked as dirty while a model is traced with gradients.

    AOTAutograd treats a write inside an ``autograd.Function`` as one under ``no_grad``. The
    argument would keep its old gradient, and would not be the function's result.
    """

    def __init__(self) -> None:
        self._marked: list[tuple[torch.Tensor, str]] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While active, record marked tensors."""
        mark = FunctionCtx.mark_dirty

        def marked(context: Any, *tensors: torch.Tensor) -> None:
            count_call("aot-dirty-arguments")
            mark(context, *tensors)
            if any(context.needs_input_grad):
                function: Any = getattr(type(context), "_forward_cls", None)
                foreign = function is None or function.__module__.startswith("torch.")
                line = "" if foreign else definition(function.forward)
                self._marked.extend((tensor, line) for tensor in tensors)

        with hooked("aot-dirty-arguments", FunctionCtx, "mark_dirty", marked):
            yield

    def check(self, arguments: list[Any]) -> None:
        """Reject marked tensors that are ``arguments``, or views of them.

        Raises:
            DirtyArgumentError: has the source line of the function.
        """
        found, self._marked = self._marked, []
        if not torch.is_grad_enabled():
            return
        given = {id(argument) for argument in arguments if isinstance(argument, torch.Tensor)}
        given |= {id(argument._base) for argument in arguments if isinstance(argument, torch.Tensor) and argument._is_view()}
        for tensor, line in found:
            if id(tensor) in given or (tensor._is_view() and id(tensor._base) in given):
                raise DirtyArgumentError(line)

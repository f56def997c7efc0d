"""Lets the optimizers of ``torch.optim`` step in a trace, where numbers that they read from tensors are not known."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import _adafactor

from .patching import constant, patched


@contextlib.contextmanager
def traced_optimizers(*, capturable: bool) -> Iterator[None]:
    """Take the extremes of symbolic numbers in the graph. Let ``capturable`` steps run on the CPU, as ``torch.compile`` does.

    Other threads, and other numbers, get Python's own functions.
    """

    def symbolic(own: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        def extreme(*values: Any, **named: Any) -> Any:
            is_symbolic = len(values) == 2 and any(isinstance(value, torch.SymFloat) for value in values)
            return function(*values) if is_symbolic else own(*values, **named)

        return extreme

    with (
        constant("traced-optimizers", _adafactor, "min", symbolic(builtins.min, torch.sym_min)),
        constant("traced-optimizers", _adafactor, "max", symbolic(builtins.max, torch.sym_max)),
        patched("traced-optimizers", torch.compiler, "is_compiling", lambda: True) if capturable else contextlib.nullcontext(),
    ):
        yield

"""Lets Adafactor compare numbers that a trace does not know: its ``min`` and ``max`` become operators of the graph."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import _adafactor

from .patching import constant


@contextlib.contextmanager
def symbolic_extremes() -> Iterator[None]:
    """Take the extremes of symbolic numbers in the graph. Other threads, and other numbers, get Python's own functions."""

    def symbolic(own: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        def extreme(*values: Any, **named: Any) -> Any:
            is_symbolic = len(values) == 2 and any(isinstance(value, torch.SymFloat) for value in values)
            return function(*values) if is_symbolic else own(*values, **named)

        return extreme

    with (
        constant("optimizer-extremes", _adafactor, "min", symbolic(builtins.min, torch.sym_min)),
        constant("optimizer-extremes", _adafactor, "max", symbolic(builtins.max, torch.sym_max)),
    ):
        yield

"""Observes comparisons of numbers that Python reads from tensors, in eager and while tracing.

In a trace, ``tensor.item()`` is a symbol whose comparisons have no known truth value. In eager it
is a number. Here that number reports each truth value that the model reads from its comparisons,
and from those of numbers computed from it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from ... import origin
from ..._torch.api import patching, shape_env

_COMPARISONS = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__")
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_COMPUTED = ("__neg__", "__pos__", "__abs__", *(f"__{r}{name}__" for name in _BINARY for r in ("", "r")))


def numbered(report: Callable[[bool, str], None]) -> Callable[[Any], Any]:
    """Return a function that wraps numbers.

    The wrapped numbers report to ``report`` each truth value and its source line.
    """

    def truth(value: bool) -> bool:
        if (frame := _frame()) is not None:
            report(value, origin.line_of(frame))
        return value

    class Truth(int):
        def __bool__(self) -> bool:
            return truth(int(self) != 0)

    def made(value: Any) -> Any:
        return kinds[type(value)](value) if type(value) in kinds else value

    def compared(base: type, name: str) -> Callable[[Any, Any], Any]:
        def method(self: Any, other: Any) -> Any:
            value = getattr(base, name)(self, other)
            return value if value is NotImplemented else Truth(value)

        return method

    def computed(base: type, name: str) -> Callable[..., Any]:
        return lambda self, *others: made(getattr(base, name)(self, *others))

    def kind(base: type) -> type:
        own: dict[str, Any] = {name: compared(base, name) for name in _COMPARISONS}
        own |= {name: computed(base, name) for name in _COMPUTED}
        own |= {"__bool__": lambda self: truth(base(self) != 0), "__hash__": base.__hash__}
        return type(f"Read{base.__name__}", (base,), own)

    kinds = {int: kind(int), float: kind(float)}
    return made


@contextlib.contextmanager
def decided(decide: Callable[[torch.SymBool, FrameType], bool | None]) -> Iterator[None]:
    """Let ``decide`` return the truth value when the model's code, in a frame, needs that of a data-dependent expression.

    None: torch decides.
    """
    original = torch.SymBool.__bool__

    def truth(expression: torch.SymBool) -> bool:
        frame = _frame() if shape_env.depends_on_data(expression) else None
        value = None if frame is None else decide(expression, frame)
        return original(expression) if value is None else value  # type: ignore[no-untyped-call]

    def nonzero(number: torch.SymFloat) -> bool:
        return bool(number != 0.0)

    with shape_env.symbolic_truths(truth, nonzero):
        yield


def _frame() -> FrameType | None:
    """Return the model's frame that needs the truth value; None if a function of torch or Python is called in between."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in (torch.__file__, patching.__file__, __file__):
        frame = frame.f_back
    return frame if frame is not None and origin.is_model(frame.f_code.co_filename) else None

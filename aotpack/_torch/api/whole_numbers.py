"""``int`` in a model that is traced: ``int()`` of a tensor or a symbol is a symbol, and a symbol is an ``int``.

Python's ``int()`` returns a number, which a trace does not have, and a size that varies is no ``int`` for ``isinstance()``.
Modules of a model look up ``int`` among their globals first, so :data:`WHOLE` stands there while the model is traced.
"""

from __future__ import annotations

import builtins
import contextlib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, Final

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ... import origin
from .building import builds


class _Whole(type):
    """The class of :data:`WHOLE`, which equals ``int`` wherever it is no call of the thread that builds."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        value = args[0] if len(args) == 1 and not kwargs and builds() else None
        if isinstance(value, torch.Tensor):
            value = value.item()
        return torch.sym_int(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else int(*args, **kwargs)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, int) or (isinstance(value, torch.SymInt) and builds())

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, int)

    def __eq__(cls, other: object) -> bool:
        return other is int or other is cls

    def __hash__(cls) -> int:
        return hash(int)

    def __getattr__(cls, name: str) -> Any:
        return getattr(int, name)


WHOLE: Final = _Whole("int", (), {})


def reader_of(error: BaseException) -> dict[str, Any] | None:
    """The globals of the model's function that reads ``int``, and fails because a symbol is none; None: it fails otherwise.

    Such a function needs a number of ``int()``, or raises an error itself.
    """
    found = None
    each: BaseException | None = error
    while each is not None:
        frames = [frame for frame, _ in traceback.walk_tb(each.__traceback__)]
        symbolic = isinstance(each, GuardOnDataDependentSymNode) and "specialized integer" in str(each)
        if symbolic or (frames and origin.is_model(frames[-1].f_code.co_filename)):
            found = reader(reversed(frames))
        each = each.__cause__ or each.__context__
    return found


def reader(frames: Iterable[FrameType]) -> dict[str, Any] | None:
    """The globals of the first of ``frames`` that is the model's, if it reads ``int``. The innermost frame comes first."""
    for frame in frames:
        if origin.is_model(frame.f_code.co_filename):
            reads = "int" in frame.f_code.co_names and frame.f_builtins.get("int") is builtins.int
            return frame.f_globals if reads and "int" not in frame.f_globals else None
    return None


@contextlib.contextmanager
def read_as_symbols(readers: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Inside the block ``int`` is :data:`WHOLE` among these globals."""
    for each in readers:
        each["int"] = WHOLE
    try:
        yield
    finally:
        for each in readers:
            del each["int"]

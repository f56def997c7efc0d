"""``int()`` in a model that is traced: of a tensor or a symbol it is a symbol.

Python's ``int`` returns a number, which a trace does not have. Modules of a model look up ``int`` among their globals first,
so :data:`WHOLE` stands there while the model is traced.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
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
        return isinstance(value, int)

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
    """The globals of the model's function whose ``int()`` a trace cannot compute; None: something else is wrong."""
    found = None
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, GuardOnDataDependentSymNode) and "specialized integer" in str(each):
            found = _innermost(each.__traceback__)
        each = each.__cause__ or each.__context__
    return found


def _innermost(traceback: TracebackType | None) -> dict[str, Any] | None:
    found = None
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        if origin.is_model(frame.f_code.co_filename):
            found = frame
    reads = found is not None and "int" in found.f_code.co_names and found.f_builtins.get("int") is builtins.int
    return found.f_globals if found is not None and reads and "int" not in found.f_globals else None


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

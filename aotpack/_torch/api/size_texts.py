"""Text that a model makes of a size that varies: ``f"head{x.shape[0]}"`` as a key, or compared with other text.

Torch writes the name of the size's symbol, so ``f"{n}" == "5"`` is false at every size. Here the size becomes constant, as
in Dynamo. Text of numbers that depend on data keeps their names: such text is mostly printed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ... import origin
from .patching import hooked


@contextlib.contextmanager
def texts_of_numbers() -> Iterator[None]:
    """Inside the block, text that the model itself makes of a symbol is that of its value, which becomes constant."""
    with contextlib.ExitStack() as stack:
        for kind, value in ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool)):
            stack.enter_context(hooked("shapes-texts", kind, "__repr__", _text(kind.__repr__, value)))
        yield


def _text(named: Callable[[Any], str], value: Callable[[Any], Any]) -> Callable[[Any], str]:
    def text(symbol: Any) -> str:
        own = origin.is_model(sys._getframe(2).f_code.co_filename)  # the caller of the hook
        return str(value(symbol)) if own and not free_unbacked_symbols(symbol) else named(symbol)

    return text

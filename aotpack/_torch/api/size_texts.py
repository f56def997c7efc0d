"""Text that a model makes of a size that varies: ``f"head{x.shape[0]}"`` as a key, or compared with other text.

Torch writes the name of the size's symbol, so ``f"{n}" == "5"`` is false at every size. Here the size becomes constant, as
in Dynamo. A number that depends on data has no value, so its text is refused. The text of a message keeps the name: an
argument of ``print()``, of ``torch._assert()`` or of a logger.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Final

import torch

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
        caller = sys._getframe(2)  # of the hook
        fixes = origin.is_model(caller.f_code.co_filename) and not _is_message(caller)
        return str(value(symbol)) if fixes else named(symbol)

    return text


_MESSAGES: Final = {"print", "_assert", "_check", "warn", "warn_once", "warning", "warning_once", "info", "info_once", "debug"}


def _is_message(frame: FrameType) -> bool:
    """Whether a frame makes text inside a statement that is a call of :data:`_MESSAGES`."""
    line, _, column, _ = [*frame.f_code.co_positions()][frame.f_lasti // 2]
    at = (line or 0, column or 0)
    return any(start <= at < end for start, end in _messages("".join(linecache.getlines(frame.f_code.co_filename))))


@functools.lru_cache(16)
def _messages(source: str) -> Sequence[tuple[tuple[int, int], tuple[int, int]]]:
    """Where the calls of source text that write messages begin and end."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # no source of Python
        return []
    calls = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    named = [call for call in calls if getattr(call.func, "attr", getattr(call.func, "id", "")) in _MESSAGES]
    return [((call.lineno, call.col_offset), (call.end_lineno or 0, call.end_col_offset or 0)) for call in named]

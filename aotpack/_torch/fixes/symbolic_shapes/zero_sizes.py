"""Adds guards if a model's comparison depends on whether a dynamic size is 0.

Torch assumes that symbols of sizes are positive, and answers such comparisons without a guard.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import sympy
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from .... import origin
from ...api.patching import caller, hooked
from ..applying import count_call

_QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "__eq__": sympy.Eq,
    "__ne__": sympy.Ne,
    "__lt__": sympy.Lt,
    "__le__": sympy.Le,
    "__gt__": sympy.Gt,
    "__ge__": sympy.Ge,
    "__sym_max__": sympy.Max,
    "__sym_min__": sympy.Min,
}
_TORCH = f"{Path(torch.__file__).parent}/"
_PASSING_ON = tuple(
    _TORCH + name for name in ("__init__.py", "overrides.py", "_export/non_strict_utils.py", "fx/experimental/sym_node.py")
)
_RUNNING_MODELS = tuple(_TORCH + name for name in ("_dynamo/utils.py", "fx/interpreter.py"))


@contextlib.contextmanager
def guard_zero_comparisons() -> Iterator[None]:
    """If a model compares a dynamic size, and the result differs for size 0, require the size to be
    at least 1.

    Torch itself adds guards for real numbers computed from sizes (``n / 2 > 0``). Comparisons by
    torch's own code add no requirement: most operators check whether they have anything to do, and
    kernels support sizes of 0.
    """
    with contextlib.ExitStack() as stack:
        for name, compare in _QUESTIONS.items():
            asking = _asking(getattr(torch.SymInt, name), compare)
            stack.enter_context(hooked("shapes-questions-about-zero", torch.SymInt, name, asking))
        yield


def _asking(ask: Callable[[Any, Any], Any], compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def asked(size: torch.SymInt, other: Any) -> Any:
        answer = ask(size, other)
        if answer is not NotImplemented and _is_of_a_model(caller()):
            for one in (size, other):
                for symbol in _may_be_zero(one):
                    count_call("shapes-questions-about-zero")
                    if _differs_at_zero(symbol, _expression(size), _expression(other), _expression(answer), compare):
                        exclude_zero(one.node.shape_env, symbol)
        return answer

    return asked


def _is_of_a_model(frame: FrameType | None) -> bool:
    while frame is not None and (frame.f_code.co_filename in _PASSING_ON or frame.f_code.co_name == "__torch_function__"):
        frame = frame.f_back
    path = frame.f_code.co_filename if frame is not None else ""
    inside = path.removeprefix(_TORCH)
    if inside == path:
        return not origin.is_ours(path)
    return path in _RUNNING_MODELS or not inside.startswith(("_", "fx/"))


def _expression(size: Any) -> Any:
    node = getattr(size, "node", None)
    return node.expr if isinstance(node, SymNode) else size


def _may_be_zero(size: Any) -> list[sympy.Symbol]:
    node = getattr(size, "node", None)
    if not isinstance(node, SymNode) or node.shape_env is None:  # a plain number, or a jagged size of a nested tensor
        return []
    lowest = {symbol: found.lower for symbol, found in node.shape_env.var_to_range.items()}
    return [symbol for symbol in node.expr.free_symbols if symbol.is_positive and lowest.get(symbol) == 0]


def _differs_at_zero(symbol: sympy.Symbol, a: Any, b: Any, answer: Any, compare: Callable[[Any, Any], Any]) -> bool:
    """Whether ``answer``, which assumes positive sizes, is different if ``symbol`` is 0."""
    try:
        there = compare(*(sympy.sympify(value).subs(symbol, 0) for value in (a, b)))
        return bool(there != sympy.sympify(answer).subs(symbol, 0))
    except ZeroDivisionError:
        return True


def exclude_zero(env: ShapeEnv, symbol: sympy.Symbol) -> None:
    """Require a size to be at least 1."""
    env.var_to_range[symbol] &= ValueRanges(1, int_oo)

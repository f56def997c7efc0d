"""Keeps checks of a model: ``if (ids < 0).any(): raise ValueError(...)`` and ``assert (mask == 1).all()``.

A trace has no value for such a condition. Where one of its values only raises an error, the trace goes the other way, and the
graph asserts it. So a call whose tensors fail the check raises an error, as in eager.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import itertools
import linecache
import sys
from collections.abc import Iterator
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ... import origin
from ..._torch.api.constants import KnownConstants
from .branches import Branch, assert_decided, assert_taken, reads_truth
from .numbers import decided

_OF_CONDITIONS = ("POP_JUMP", "JUMP_IF", "TO_BOOL", "UNARY_NOT", "COPY", "CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN")
"""Instructions after that which computes a condition. Their positions in the source are those of a whole statement."""
_Place = tuple[int, int, int, int]
"""The line and column of an expression's start, and those of its end."""


@contextlib.contextmanager
def kept_checks() -> Iterator[None]:
    """Inside the block, truth values that are read only to raise an error are asserted."""
    constants = KnownConstants()
    with constants, _Checks(constants), decided(_asserted):
        yield


def _asserted(expression: torch.SymBool, frame: FrameType) -> bool | None:
    passing = passing_value(frame)
    if passing is not None:
        assert_decided(expression, Branch(passing, origin.line_of(frame)))
    return passing


class _Checks(TorchFunctionMode):
    """``constants`` are read as they are."""

    def __init__(self, constants: KnownConstants) -> None:
        super().__init__()
        self._constants = constants

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if reads_truth(func, args) and not self._constants.knows(args[0]):
            frame = _reader()
            passing = None if frame is None else passing_value(frame)
            if frame is not None and passing is not None:
                assert_taken(args[0], Branch(passing, origin.line_of(frame)))
                return passing
        return func(*args, **(kwargs or {}))


def _reader() -> FrameType | None:
    """The frame that reads a tensor: the innermost one of a model or a library, unless torch's own code reads it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name in ("__torch_function__", "__bool__"):
        frame = frame.f_back
    return frame if frame is not None and origin.is_model(frame.f_code.co_filename) else None


def passing_value(frame: FrameType) -> bool | None:
    """The truth value of the expression that a frame evaluates now for which no error is raised; None: it is no check."""
    code = frame.f_code
    i = frame.f_lasti // 2
    while i and dis.opname[code.co_code[2 * i]].startswith(_OF_CONDITIONS):
        i -= 1
    line, end_line, column, end_column = next(itertools.islice(code.co_positions(), i, None))
    functions, checks = _checks("".join(linecache.getlines(code.co_filename)))
    is_its_source = (code.co_name, code.co_firstlineno) in functions  # the file may have changed since
    return checks.get((line or 0, column or 0, end_line or 0, end_column or 0)) if is_its_source else None


@cache
def _checks(source: str) -> tuple[frozenset[tuple[str, int]], dict[_Place, bool]]:
    """The functions of a source with their first lines, and the expressions that are checked with the values that pass."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # no Python that this one reads
        return frozenset(), {}
    functions: set[tuple[str, int]] = set()
    found: dict[_Place, bool] = {}
    caught = {id(each) for node in ast.walk(tree) if _catches(node) for each in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            functions.add((node.name, min([node.lineno, *(each.lineno for each in node.decorator_list)])))
        if id(node) in caught:
            continue
        if isinstance(node, ast.Assert):
            found |= dict(_needed(node.test, value=True))
        elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            found |= dict(_needed(node.test, value=False))
        elif isinstance(node, ast.If) and node.orelse and isinstance(node.orelse[-1], ast.Raise):
            found |= dict(_needed(node.test, value=True))
    return frozenset(functions), found


def _catches(node: ast.AST) -> bool:
    """Whether an error inside a statement may not leave it."""
    if isinstance(node, ast.With):
        return any("suppress" in ast.dump(item.context_expr) for item in node.items)
    return isinstance(node, ast.Try) and bool(node.handlers)


def _needed(test: ast.expr, *, value: bool) -> Iterator[tuple[_Place, bool]]:
    """The operands of a condition that must have one value for the condition to have ``value``.

    Of ``a and b`` or ``0 < a < b``, which are to be false, either part may be false.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _needed(test.operand, value=not value)
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) is value:
            for operand in test.values:
                yield from _needed(operand, value=value)
    elif value or not isinstance(test, ast.Compare) or len(test.ops) == 1:
        yield (test.lineno, test.col_offset, test.end_lineno or 0, test.end_col_offset or 0), value
        if isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "bool" and len(test.args) == 1:
            yield from _needed(test.args[0], value=value)

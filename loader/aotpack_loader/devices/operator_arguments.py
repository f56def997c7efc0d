"""Checks the arguments that a graph gives an operator against the operator's schema in torch (rule G11).

torch's own conversion is more lenient than is safe. It takes any integer as an element type, a layout
or a memory format, and looks it up without a bound. It also takes a text as a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch

from ..errors import CorruptBundleError, Problem
from ..format import schema
from ..format.validate_expressions import flat

_NUMBER: Final = (bool, int, schema.FloatArg)
_LITERALS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "Tensor": ((*_NUMBER, schema.ComplexArg), "a value or a number"),
    "int": ((bool, int), "an integer"),
    "float": (_NUMBER, "a number"),
    "number": ((*_NUMBER, schema.ComplexArg), "a number"),
    "bool": ((bool,), "a truth value"),
    "str": ((str,), "a text"),
    "ScalarType": ((schema.DTypeArg,), "an element type"),
    "Layout": ((schema.LayoutArg,), "a layout"),
    "MemoryFormat": ((schema.MemoryFormatArg,), "a memory format"),
    "Device": ((schema.DeviceArg,), "a device"),
}
"""The literals that an argument of a type may be. Other types (generators, streams) have none."""
_COMPUTED: Final = frozenset({"Tensor", "int", "float", "number", "bool"})
"""Types of arguments that may be values of the graph.

A value is an integer at run time, whatever the graph records. So a value is never an element type or the like.
"""
_LIMIT: Final = 2**63


class Parameter(NamedTuple):
    """A parameter of an operator.

    ``spread`` parameters are lists that take a single number too, as ``stride=2`` for ``[2, 2]``.
    ``items_optional``: items of the list may be None.
    """

    name: str
    kind: str
    optional: bool
    is_list: bool
    spread: bool
    keyword: bool
    required: bool
    items_optional: bool = False

    def problem(self, arg: object) -> str:
        """What is wrong with an argument, or an empty string."""
        if arg is None:
            return "" if self.optional else f"is null, expected {self._expected()}"
        if isinstance(arg, list):
            if not self.is_list:
                return f"is a list, expected {self._expected()}"
            return next((text for text in map(self._item_problem, arg) if text), "")
        if isinstance(arg, (schema.ValueRef, schema.ExprArg)) and self.kind in _COMPUTED:
            return ""
        if self.is_list and not self.spread:
            return f"is {_spelled(arg)}, expected {self._expected()}"
        return self._item_problem(arg)

    def _item_problem(self, arg: object) -> str:
        if isinstance(arg, (schema.ValueRef, schema.ExprArg)):
            return "" if self.kind in _COMPUTED else f"is a value of the graph, expected {self._expected()}"
        if arg is None and self.items_optional:
            return ""
        accepted, _ = _LITERALS.get(self.kind, ((), ""))
        if not isinstance(arg, accepted):
            return f"is {_spelled(arg)}, expected {self._expected()}"
        if isinstance(arg, int) and not -_LIMIT <= arg < _LIMIT:
            return "is no 64-bit integer"
        return ""

    def _expected(self) -> str:
        _, text = _LITERALS.get(self.kind, ((), "nothing that a graph can hold"))
        return f"a list, each {text}" if self.is_list else text


def check(node: str, operator: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Compare the arguments of the node called ``node`` with the schema of its operator (G11).

    Raises:
        CorruptBundleError: lists every argument that does not fit.
    """
    problems = list(_problems(operator, args, kwargs))
    if problems:
        raise CorruptBundleError(
            f"G11: the arguments of the node {node!r} do not fit {operator}.",
            [Problem(name, text) for name, text in problems[:20]],
            hint="The bundle was damaged or written by something else than aotpack: build it again.",
        )


def check_view(step: schema.ViewStep, operator: torch._ops.OpOverload) -> None:
    """Compare a step of view replay with its operator (G11, C37).

    It has literals and expressions only, and selects one of several results if there are several.

    Raises:
        CorruptBundleError: lists what does not fit.
    """
    where = f"view {step.op}"
    if any(isinstance(arg, (schema.ValueRef, schema.GraphArg)) for arg in flat([*step.args, *step.kwargs.values()])):
        raise CorruptBundleError(f"C37: the {where} of a result uses a value of a graph.")
    check(where, operator, [schema.ValueRef("base"), *step.args], step.kwargs)
    returns = operator._schema.returns
    several = len(returns) == 1 and str(returns[0].real_type) == "List[Tensor]"
    if len(returns) != 1 or several is not (step.select is not None):
        raise CorruptBundleError(f"C37: the {where} of a result gives {'several values' if several else 'one value'}.")


def _problems(operator: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    positional, named = parameters(operator)
    if len(args) > len(positional):
        yield "", f"{len(args)} positional arguments, there are {len(positional)}"
        return
    given = dict(zip(positional, args, strict=False))
    for name, arg in kwargs.items():
        parameter = named.get(name)
        if parameter is None:
            yield name, "there is no such argument"
        elif parameter in given:
            yield name, "is given twice"
        else:
            given[parameter] = arg
    for parameter in named.values():
        if parameter in given:
            if text := parameter.problem(given[parameter]):
                yield parameter.name, text
        elif parameter.required:
            yield parameter.name, "is missing"


@lru_cache(maxsize=4096)
def parameters(operator: torch._ops.OpOverload) -> tuple[tuple[Parameter, ...], Mapping[str, Parameter]]:
    """The parameters that an operator takes by position, and all of them by name."""
    found = [_parameter(argument) for argument in operator._schema.arguments]
    return tuple(one for one in found if not one.keyword), {one.name: one for one in found}


def _parameter(argument: Any) -> Parameter:
    kind, optional = str(argument.real_type), False
    if kind.startswith("Optional["):
        kind, optional = kind[9:-1], True
    is_list = kind.startswith("List[")
    items_optional = kind.startswith("List[Optional[")
    if is_list:
        kind = kind[14:-2] if items_optional else kind[5:-1]
    spread = is_list and kind in ("int", "float", "bool")
    return Parameter(
        argument.name, kind, optional, is_list, spread, argument.kwarg_only, not argument.has_default_value(), items_optional
    )


def _spelled(arg: object) -> str:
    """An argument in words."""
    if isinstance(arg, schema.Document):
        return f"{type(arg).__name__.removesuffix('Arg')}({getattr(arg, 'value', getattr(arg, 'name', ''))})"
    text = str(arg) if not isinstance(arg, int) or abs(arg) < _LIMIT else "an integer of more than 64 bits"
    return text if len(text) <= 60 else f"{text[:60]}…"

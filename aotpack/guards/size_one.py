"""Drops guards against sizes of 1 where the graphs are right at size 1 as well.

While tracing, torch asks whether a dynamic size is 1, and keeps a guard that it is not. Torch asks
in order to compute strides. The model may ask as well, in order to see whether it must broadcast.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from msgspec import structs

from aotpack_loader.format import expressions, schema

from .. import signature
from .._torch.api import shape_env
from ..capture.calls import Call, Calls, is_one_program
from ..capture.inputs.dynamic_shapes import DynamicShapes
from . import zero_one

Guards = Mapping[str, Sequence[str]]
"""By symbol: the constraints that involve only this symbol and refuse 1."""


def drop_unneeded_guards(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: DynamicShapes,
    convention: signature.Convention,
) -> signature.Convention:
    """Return the method without those guards against 1 that its graphs do not need.

    ``model`` must be in the mode in which it was traced.
    """
    constraints: list[str] = convention.method.constraints
    symbols: list[schema.Symbol] = convention.method.symbols
    guards = {symbol.name: [text for text in constraints if _refuses_one_alone(text, symbol.name)] for symbol in symbols}
    asked = {symbol.name for symbol in symbols if guards[symbol.name] or symbol.minimum == 2}
    asked -= {symbol.name for symbol in symbols if _smallest(shapes, convention, symbol.name) > 1}
    freed = list[str]()
    for name in sorted(asked):
        tried = _free(convention, [*freed, name], guards)
        if _takes_one(model, args, kwargs, tried, [name]) and (
            not freed or _takes_one(model, args, kwargs, tried, [*freed, name])
        ):
            freed.append(name)
    for name in freed:
        shape_env.allow_one(convention.shape_env, name)
    return _free(convention, freed, guards)


def allows(constraint: str, symbol: str, size: int) -> bool:
    """Whether ``size`` meets a constraint on ``symbol`` alone.

    True if the constraint involves other symbols.
    """
    if expressions.symbols(constraint) != {symbol}:
        return True
    try:
        return bool(expressions.parse(constraint)({symbol: size}))
    except expressions.UNDEFINED:  # a constraint without a value is not met (A5)
        return False


def _takes_one(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    convention: signature.Convention,
    names: Collection[str],
) -> bool:
    """Whether the graphs do what the model does when the sizes ``names`` are 1.

    The model must call the same torch functions on the same values at 1, at the example's size and
    at a third size. On fake tensors, the graphs must agree with the model at 1.
    """
    symbols: Sequence[schema.Symbol] = convention.method.symbols
    example = {symbol.name: symbol.hint for symbol in symbols if symbol.hint is not None}
    if len(example) < len(symbols) or len({example[name] for name in names}) > 1:
        return False
    size = example[next(iter(names))]
    varying = _with_companions(names, convention, example)
    maximum = min((s.maximum for s in symbols if s.name in varying and s.maximum is not None), default=size + 1)
    other = size + 1 if maximum > size else size - 1
    if size < 2 or other < 2:
        return False
    runs = list[tuple[int, Sequence[Call]]]()
    for chosen in (1, size, other):
        size_run, calls = zero_one.SizeRun(convention, example | dict.fromkeys(varying, chosen)), Calls()
        if not size_run.calls(model, args, kwargs, calls):
            return False
        runs.append((chosen, calls.made))
    if not is_one_program(runs):
        return False
    size_runs = [zero_one.SizeRun(convention, example | dict.fromkeys(varying, chosen), strict=True) for chosen in (1, size)]
    for size_run in size_runs:
        size_run.run(model, args, kwargs)
    at_one, usual = size_runs
    return at_one.ran and at_one.marks == usual.marks and not at_one.simplified and at_one.differs.keys() <= usual.differs.keys()


def _with_companions(names: Collection[str], convention: signature.Convention, example: Mapping[str, int]) -> list[str]:
    """Return ``names`` and the symbols that must be 1 together with them.

    The model may use one size as another (``mask.view(batch, -1)``). Each has its own symbol, and
    constraints tie the two.
    """
    constraints = convention.method.constraints
    varying = [*names]
    sizes = {**example, **dict.fromkeys(varying, 1)}
    if zero_one.satisfy(constraints, sizes):
        return varying
    size = example[varying[0]]
    others = [name for name, hint in example.items() if hint == size and name not in names]
    tied = {
        name for text in constraints for name in expressions.symbols(text) if not {*names}.isdisjoint(expressions.symbols(text))
    }
    together = [*varying, *(name for name in others if name in tied)]
    return together if zero_one.satisfy(constraints, sizes | dict.fromkeys(together, 1)) else varying


def _free(convention: signature.Convention, names: Sequence[str], guards: Guards) -> signature.Convention:
    """Return the method with size 1 allowed for these symbols."""
    dropped = {text for name in names for text in guards[name]}
    symbols = [
        structs.replace(symbol, minimum=min(symbol.minimum, 1)) if symbol.name in names else symbol
        for symbol in convention.method.symbols
    ]
    kept = [text for text in convention.method.constraints if text not in dropped]
    return convention.changed(symbols=symbols, constraints=kept)


def _refuses_one_alone(constraint: str, symbol: str) -> bool:
    """Whether a constraint is on this symbol alone, refuses 1 and allows the sizes from 2 to 8."""
    return (
        expressions.symbols(constraint) == {symbol}
        and [allows(constraint, symbol, n) for n in range(1, 9)] == [False] + [True] * 7
    )


def _smallest(shapes: DynamicShapes, convention: signature.Convention, symbol: str) -> int:
    """Return the smallest size that the user asked for."""
    leaves = convention.method.leaves
    found = [
        low or 0
        for number, dims in shapes.dims.items()
        for dim, (low, *_) in dims.items()
        if isinstance(leaf := leaves[number], schema.TensorLeaf) and leaf.shape[dim] == symbol
    ]
    return max(found, default=2)

"""Resolves ``specializations``: turns the sizes that the user names into values of each method's symbols.

Targets whose code is for fixed sizes are compiled for these values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from aotpack_loader.errors import BuildError, Problem
from aotpack_loader.format import expressions, schema

from ..targets import GraphToCompile, Target

Sizes = Mapping[str, int]
"""Values by the name of a ``torch.export.Dim``, or by the name of a symbol as ``aotpack inspect`` shows it."""


def refuse_unused(targets: Sequence[Target], asked: Sequence[Sizes]) -> None:
    """Refuse specializations if no target uses them.

    Raises:
        BuildError: names the targets.
    """
    if asked and not any(target.capabilities.specializes for target in targets):
        names = ", ".join(target.name for target in targets)
        raise BuildError(
            f"Specializations are for targets whose code is for fixed sizes; asked for: {names}.",
            hint="Leave them out, or build for xla.",
        )


def of_updates(
    graphs: Sequence[GraphToCompile], optimizers: Iterable[schema.Optimizer], state: Iterable[schema.StateEntry]
) -> list[GraphToCompile]:
    """Return the graphs; those of flat updates with the numbers of elements of the parameters that they update.

    Updates of rows have none: there are as many as a sparse gradient has.
    """
    elements = {entry.name: prod(entry.shape) for entry in state}
    found: dict[str, set[int]] = {}
    for update in (update for optimizer in optimizers for update in optimizer.updates):
        if update.flat and update.sparse != "required":
            found.setdefault(f"{update.method}.forward", set()).update(elements[name] for name in update.parameters)
    return [
        replace(item, specializations=[{item.method.symbols[0].name: size} for size in sorted(found[item.key])])
        if item.key in found and item.method is not None
        else item
        for item in graphs
    ]


def specialize(graphs: Sequence[GraphToCompile], asked: Sequence[Sizes]) -> list[GraphToCompile]:
    """Return the graphs with the sizes that they are compiled for.

    Raises:
        BuildError: a size is unknown, missing, or not accepted by the program. Lists all problems.
    """
    if not asked:
        return list(graphs)
    methods = {item.key.rpartition(".")[0]: item.method for item in graphs if item.method is not None and not item.method.step}
    varying = {name: method for name, method in methods.items() if method.symbols}
    if not varying:
        raise BuildError("The specializations have no effect: no size of this program varies.", hint="Build with dynamic_shapes.")
    problems = [problem for i, sizes in enumerate(asked) for problem in _unknown(sizes, varying.values(), _where(i, sizes))]
    values = {name: [_values(method, sizes) for sizes in asked] for name, method in varying.items()}
    for name, method in varying.items():
        for i, found in enumerate(values[name]):
            problems += [Problem(_where(i, asked[i]), f"{name}: {message}") for message in _misfits(method, found)]
    if problems:
        known = dict.fromkeys(_range(symbol) for method in varying.values() for symbol in method.symbols)
        raise BuildError("The specializations do not fit the program.", problems, hint=f"Its sizes: {', '.join(known)}.")
    distinct = {name: [sizes for i, sizes in enumerate(found) if sizes not in found[:i]] for name, found in values.items()}
    return [replace(item, specializations=distinct.get(item.key.rpartition(".")[0], item.specializations)) for item in graphs]


def _where(number: int, sizes: Sizes) -> str:
    return f"specializations[{number}] ({','.join(f'{name}={value}' for name, value in sizes.items())})"


def _unknown(sizes: Sizes, methods: Iterable[schema.Method], where: str) -> Iterator[Problem]:
    known = {name for method in methods for symbol in method.symbols for name in (symbol.name, symbol.label)}
    for name, value in sizes.items():
        if name not in known or not name:
            yield Problem(where, f"no size is called {name!r}")
        if type(value) is not int:
            yield Problem(where, f"{name} is {value!r}, not an integer")


def _values(method: schema.Method, sizes: Sizes) -> dict[str, int]:
    """Return the values of a method's symbols, without those that are missing or not integers."""
    found = {symbol.name: sizes.get(symbol.name, sizes.get(symbol.label)) for symbol in method.symbols}
    return {name: value for name, value in found.items() if type(value) is int}


def _misfits(method: schema.Method, values: Mapping[str, int]) -> Iterator[str]:
    """Yield the reasons why a method does not accept these values."""
    for symbol in method.symbols:
        value = values.get(symbol.name)
        if value is None:
            yield f"no value for {_range(symbol)}"
        elif not symbol.takes(value):
            yield f"{value} is not in the range of {_range(symbol)}"
    for text in method.constraints:
        if expressions.symbols(text) <= values.keys() and not expressions.evaluate(text, values):
            yield f"the model takes only sizes with {text}"


def _range(symbol: schema.Symbol) -> str:
    return f"{symbol.label or symbol.name}={symbol.minimum}..{'' if symbol.maximum is None else symbol.maximum}"

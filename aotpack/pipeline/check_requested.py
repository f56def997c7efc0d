"""Compares a traced method with what the user asked for: gradients, and sizes that vary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from aotpack_loader.errors import BuildError, Problem, UnsupportedError
from aotpack_loader.format import expressions, schema
from aotpack_loader.format.interface import ASSIGNED
from aotpack_loader.format.labels import Labels, sources_of

from .. import signature
from .._torch.api.fake_tensors import Bounds
from ..capture.inputs.dynamic_shapes import DynamicShapes
from ..guards import size_one


def check_turned_on(convention: signature.Convention) -> None:
    """Refuse results and writes with gradients in a method traced without gradients.

    Here the model turns gradients on by itself. But the loader rebuilds views and writes to
    arguments with gradients off.
    """
    results = [r for r in convention.method.results if isinstance(r, schema.AliasResult) and r.output is not None]
    written = [m for m in convention.method.mutations if m.requires_grad]
    if any(result.requires_grad for result in results) or written:
        raise UnsupportedError(
            "The model turns gradients on (enable_grad) in a method without gradients, and returns views or writes to arguments.",
            hint="Build without this method, methods=('train',), and call it with gradients on.",
        )


def check_dynamic(
    shapes: DynamicShapes,
    leaves: Sequence[schema.InputLeaf],
    symbols: Sequence[schema.Symbol],
    constraints: Sequence[str],
    lines: Mapping[int, str],
    *,
    rejected: Sequence[Problem] = (),
    second: bool = False,
) -> None:
    """Check that each size that the user declared dynamic is dynamic, over the whole range that the user gave.

    ``lines`` are those of the model that fix a size at a number, and ``rejected`` says why other front ends could not keep
    it. ``second``: the method computes second derivatives, so its arguments are not the user's.
    """
    ranges, labels = {symbol.name: symbol for symbol in symbols}, Labels(symbols, sources_of(leaves))
    problems, ones = list[Problem](), list[str]()
    for where, size, bounds in _declared_sizes(shapes, leaves):
        fixed = size if isinstance(size, int) else _only_size(ranges.get(size), constraints)
        if fixed is not None:
            if second:
                raise _fixed_by_second_derivative(bounds.name or where, fixed)
            problems.append(Problem(where, f"dynamic in dynamic_shapes, but the model fixes it at {fixed}{_at(lines, fixed)}"))
            ones += [where] if fixed == 1 else []
        elif size in ranges:
            ends = [end for end in (bounds.minimum, bounds.maximum) if end is not None]
            narrower = [*_narrower(where, ranges[size], bounds.minimum, bounds.maximum)]
            refused = [text for text in constraints for end in ends if not size_one.allows(text, size, end)]
            if refused and not narrower:  # a narrower range says the same
                allowed = ", ".join(map(labels.text, dict.fromkeys(refused)))
                problems.append(Problem(where, f"dynamic_shapes allows more than the model: {allowed}"))
            problems += narrower or _excludes_example(where, ranges[size])
    for number, bounds in shapes.integers.items():
        path, found = leaves[number].path, ranges.get(getattr(leaves[number], "size", ""))
        if found is None:
            problems.append(Problem(path, "dynamic in dynamic_shapes, but the model fixes it"))
        else:
            problems += _narrower(path, found, bounds.minimum or 0, math.inf if bounds.maximum is None else bounds.maximum)
    if problems:
        raise BuildError(
            "The model does not allow these sizes to vary as dynamic_shapes asks.",
            [*problems, *rejected],
            hint=f"Operators decide by a size of 1. Build with an example that has 2 or more in {', '.join(ones)}."
            if ones
            else "",
        )


def narrowed(
    shapes: DynamicShapes, leaves: Sequence[schema.InputLeaf], symbols: Sequence[schema.Symbol], lines: Mapping[int, str]
) -> Iterator[str]:
    """Say which sizes vary less than ``Dim.AUTO`` lets them: those that are fixed, and those with a smaller range."""
    ranges = {symbol.name: symbol for symbol in symbols}
    for where, size, bounds in _declared_sizes(shapes, leaves, automatic=True):
        if where.startswith(ASSIGNED):  # nobody asked for these
            continue
        if isinstance(size, int):
            yield f"{where}, Dim.AUTO, does not vary: the model fixes it at {size}{_at(lines, size)}"
        elif size in ranges:
            low, high = bounds.minimum or 2, math.inf if bounds.maximum is None else bounds.maximum
            yield from (f"{where}, Dim.AUTO: {found.message}" for found in _narrower(where, ranges[size], low, high))


def merged(shapes: DynamicShapes, leaves: Sequence[schema.InputLeaf]) -> Iterator[str]:
    """Say which sizes of different names the model takes only where they are equal, so that they became one."""
    first: dict[str, tuple[str, str]] = {}
    for where, size, bounds in _declared_sizes(shapes, leaves):
        if isinstance(size, str) and bounds.name:
            name, path = first.setdefault(size, (bounds.name, where))
            if name != bounds.name:
                yield f"{path} ({name}) and {where} ({bounds.name}) are one size: the model takes only equal ones"


def _at(lines: Mapping[int, str], size: int) -> str:
    return f" [at {lines[size]}]" if lines.get(size) else ""


def _only_size(symbol: schema.Symbol | None, constraints: Sequence[str]) -> int | None:
    """Return the example's size if a constraint allows no other."""
    return symbol.hint if symbol is not None and f"({symbol.name} == {symbol.hint})" in constraints else None


def check_target(shapes: DynamicShapes, methods: Mapping[str, schema.Method], target: schema.Target) -> None:
    """Check that a target's code takes the sizes that the user asked for, as far as the graphs take them.

    The ends of each range are tried, the example's size, and those around it.

    Raises:
        BuildError: it takes fewer.
    """
    problems = [
        Problem(f"{where} in {name}()", f"its code needs {Labels(method.symbols, sources_of(method.leaves)).text(text)}")
        for name, method in methods.items()
        for where, size, bounds in _declared_sizes(shapes, method.leaves)
        for text in target.constraints.get(name, ())
        if isinstance(size, str) and any(_narrows(text, method, size, count) for count in _tried(method, size, bounds))
    ]
    if problems:
        raise BuildError(
            f"The code of target {target.name} does not allow these sizes to vary as dynamic_shapes asks.",
            problems,
            hint='Build with targets=("portable",), or with narrower ranges.',
        )


def _tried(method: schema.Method, size: str, bounds: Bounds) -> Iterator[int]:
    """Sizes of the range that a user gave, or that a method takes, for the symbol ``size``."""
    for symbol in method.symbols:
        if symbol.name == size and symbol.hint is not None:
            low = symbol.minimum if bounds.minimum is None else bounds.minimum
            high = symbol.maximum if bounds.maximum is None else bounds.maximum
            tried = {low, *range(symbol.hint - 1, symbol.hint + 4), *(() if high is None else (high,))}
            yield from sorted(count for count in tried if count >= low and (high is None or count <= high))


def _narrows(text: str, method: schema.Method, size: str, count: int) -> bool:
    """Whether a target's constraint excludes a size that the method takes, with the example's other sizes."""
    sizes = {symbol.name: symbol.hint for symbol in method.symbols if symbol.hint is not None} | {size: count}
    texts = [text, *method.constraints]
    if size not in expressions.symbols(text) or any(not expressions.symbols(each) <= sizes.keys() for each in texts):
        return False
    try:
        own, *others = [bool(expressions.parse(each)(sizes)) for each in texts]
    except expressions.UNDEFINED:  # no value at this size, so it is no size that either takes
        return False
    return all(others) and not own


def relations(shapes: DynamicShapes, leaves: Sequence[schema.InputLeaf]) -> list[str]:
    """Return the constraints between sizes that are derived from one ``Dim``, where they are no one expression."""
    found = []
    for items in shapes.related().values():
        sizes = [(size, _size_of(leaves[i], dim)) for i, dim, size in items if not size.automatic]
        steps = [(size.factor, f"({text} + ({-size.offset}))" if size.offset else text) for size, text in sizes if text]
        found += [f"(({text} % {factor}) == 0)" for factor, text in steps if factor > 1]
        found += [f"(({factor} * {steps[0][1]}) == ({steps[0][0]} * {text}))" for factor, text in steps[1:]]
    simple = [text for text in found if not _is_always_true(text)]
    return sorted({*simple})


def _size_of(leaf: schema.InputLeaf, dim: int | None) -> str:
    """Return the symbols of a size, or an empty string if it is fixed."""
    size = getattr(leaf, "size", "") if dim is None else leaf.shape[dim] if isinstance(leaf, schema.TensorLeaf) else ""
    return size if isinstance(size, str) else ""


def _is_always_true(text: str) -> bool:
    """Whether sizes that became expressions of one symbol keep a constraint by themselves."""
    names = expressions.symbols(text)
    return len(names) == 1 and all(expressions.parse(text)(dict.fromkeys(names, n)) for n in range(1, 50))


def without_one(
    shapes: DynamicShapes, leaves: Sequence[schema.InputLeaf], symbols: Sequence[schema.Symbol], constraints: Sequence[str]
) -> list[str]:
    """Return the sizes, one for each symbol, that the user lets begin at 0 and that cannot be 1."""
    ranges = {symbol.name: symbol for symbol in symbols}
    found = {
        size: where
        for where, size, bounds in reversed([*_declared_sizes(shapes, leaves)])
        if bounds.minimum is None and size in ranges and isinstance(size, str)
        if ranges[size].minimum > 1 or not all(size_one.allows(text, size, 1) for text in constraints)
    }
    return sorted(found.values())


def _declared_sizes(
    shapes: DynamicShapes, leaves: Sequence[schema.InputLeaf], *, automatic: bool = False
) -> Iterator[tuple[str, schema.Dim, Bounds]]:
    """Each size of a tensor that must vary, how the user finds it, and the range that the user gave.

    ``automatic``: those that may vary (``Dim.AUTO``).
    """
    for number, dims in shapes.dims.items():
        leaf = leaves[number]
        for dim, bounds in dims.items():
            if bounds.automatic is automatic:
                yield f"{leaf.path}.shape[{dim}]", leaf.shape[dim] if isinstance(leaf, schema.TensorLeaf) else 0, bounds


def _narrower(where: str, found: schema.Symbol, low: int | None, high: float | None) -> Iterator[Problem]:
    """The problem of a size that varies less than from ``low`` to ``high``; null is an end that the user left open."""
    starts_later = low is not None and found.minimum > low
    if starts_later or (found.maximum is not None and high is not None and found.maximum < high):
        limit = "" if found.maximum is None else found.maximum
        yield Problem(where, f"dynamic_shapes allows more than the model, {found.minimum}..{limit}")


def _excludes_example(where: str, found: schema.Symbol) -> list[Problem]:
    """The problem of an example that is smaller than all sizes that the model takes with it."""
    if found.hint is None or found.hint >= found.minimum:
        return []
    text = f"is {found.hint} in the example, and the model takes at least {found.minimum}: give an example of such a size"
    return [Problem(where, text)]


def _fixed_by_second_derivative(where: str, size: int) -> BuildError:
    message = f"torch's second derivative of an operator fixes it at {size}; those of convolutions and batch norms do"
    return BuildError(
        "Second derivatives do not allow these sizes to vary as dynamic_shapes asks.",
        [Problem(where, message)],
        hint="Build with this size as it is in the example, or without second_derivatives.",
    )


def labelled(symbols: Sequence[schema.Symbol], shapes: DynamicShapes, leaves: Sequence[schema.InputLeaf]) -> list[schema.Symbol]:
    """Return the symbols with the user's names.

    A symbol's label is the first name of a size that is just this symbol.
    """
    names: dict[schema.Dim, str] = {}
    for number, bounds in shapes.integers.items():
        if isinstance(leaf := leaves[number], schema.IntegerLeaf):
            names.setdefault(leaf.size, bounds.name)
    for number, dims in shapes.dims.items():
        for dim, bounds in dims.items():
            if bounds.name and isinstance(leaf := leaves[number], schema.TensorLeaf):
                names.setdefault(leaf.shape[dim], bounds.name)
    return [structs.replace(symbol, label=names.get(symbol.name, "")) for symbol in symbols]

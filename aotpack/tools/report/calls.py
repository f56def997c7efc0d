"""Whether a call of one bundle is a call of another, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from aotpack_loader.format import expressions, schema
from aotpack_loader.format.labels import Labels, labels_of

from .describe import argument_type, result_type

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle

Found = tuple[str, str, bool]
"""Where, what, and whether a call of the first bundle does not fit the second."""


def changes(first: Bundle, second: Bundle) -> Iterator[Found]:
    """Yield what changed in the parameters, methods, arguments and results."""
    yield from _parameters(first.program.signature or [], second.program.signature or [])
    old, new = first.program.methods, second.program.methods
    for name in old.keys() - new.keys():
        yield name, "method removed", True
    for name in new.keys() - old.keys():
        yield name, "method added", False
    for name in old:
        if name in new:
            yield from (
                (f"{name}: {where}" if where else name, text, breaks) for where, text, breaks in _method(first, second, name)
            )


def _parameters(old: list[schema.Parameter], new: list[schema.Parameter]) -> Iterator[Found]:
    """Compare the parameters of the original's ``forward``."""
    before, after = {one.name: one for one in old}, {one.name: one for one in new}
    for name in before.keys() - after.keys():
        yield name, "parameter removed", True
    for name in after.keys() - before.keys():
        optional = after[name].optional or after[name].kind.startswith("var_")
        yield name, f"parameter added{'' if optional else ', without a default'}", not optional
    kept = [one.name for one in old if one.name in after]
    if kept != [one.name for one in new if one.name in before]:
        yield "parameters", f"in another order: {', '.join(after)}", True
    for name in kept:
        if before[name].optional and not after[name].optional:
            yield name, "no longer has a default", True
        if before[name].kind != after[name].kind:
            yield name, f"was {_words(before[name].kind)}, is {_words(after[name].kind)}", True


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _method(first: Bundle, second: Bundle, name: str) -> Iterator[Found]:
    old, new = first.program.methods[name], second.program.methods[name]
    for mode in old.serves:
        if mode not in new.serves:
            yield (
                "",
                f"no longer serves {'train()' if mode.training else 'eval()'} {'with' if mode.grad else 'without'} grad",
                True,
            )
    if old.autocast != new.autocast:
        yield "", f"for autocast to {new.autocast or 'nothing'}, before {old.autocast or 'nothing'}", True
    if old.rng != new.rng:
        yield "", f"random numbers: {new.rng}, before {old.rng}", False
    labels = labels_of(old), labels_of(new)
    yield from _arguments(old, new, *labels)
    conditions = {labels[0].text(condition) for condition in old.constraints}
    for condition in new.constraints:
        if labels[1].text(condition) not in conditions:
            yield "sizes", f"now need {labels[1].text(condition)}", True
    if first.has(old.forward) and second.has(new.forward):
        yield from _results(_result_types(first, old, labels[0]), _result_types(second, new, labels[1]))


# ---------------------------------------------------------------- arguments


def _arguments(old: schema.Method, new: schema.Method, of_old: Labels, of_new: Labels) -> Iterator[Found]:
    before, after = ({leaf.path: leaf for leaf in method.leaves} for method in (old, new))
    for path in before.keys() - after.keys():
        yield path, "argument removed", True
    for path in after.keys() - before.keys():
        yield path, f"argument added, {of_new.text(argument_type(after[path]))}", path not in new.defaults
    for path, leaf in before.items():
        if path in after:
            shown = of_old.text(argument_type(leaf)), of_new.text(argument_type(after[path]))
            yield from ((path, text, breaks) for text, breaks in _argument(leaf, after[path], _ranges(old), _ranges(new), shown))
    yield from _equal_sizes(old, new, of_new)


_Range = tuple[float, float]


def _ranges(method: schema.Method) -> dict[str, _Range]:
    return {one.name: (one.minimum, math.inf if one.maximum is None else one.maximum) for one in method.symbols}


def _argument(
    old: schema.InputLeaf,
    new: schema.InputLeaf,
    of_old: Mapping[str, _Range],
    of_new: Mapping[str, _Range],
    shown: tuple[str, str],
) -> Iterator[tuple[str, bool]]:
    became = f"takes {shown[1]}, before {shown[0]}"
    if isinstance(old, schema.IntegerLeaf) and isinstance(new, schema.IntegerLeaf):
        yield from _size("", old.size, new.size, of_old, of_new)
    elif isinstance(old, schema.TensorLeaf) and isinstance(new, schema.TensorLeaf):
        classes = [None if leaf.subclass is None else leaf.subclass.name for leaf in (old, new)]
        same = (old.dtype, old.device, len(old.shape), classes[0]) == (new.dtype, new.device, len(new.shape), classes[1])
        if not same:
            yield became, True
            return
        if old.requires_grad != new.requires_grad:
            yield ("now gets a gradient", False) if new.requires_grad else ("no longer gets a gradient", True)
        for dim, (before, after) in enumerate(zip(old.shape, new.shape, strict=True)):
            yield from _size(f"shape[{dim}]", before, after, of_old, of_new)
    elif old != new:
        yield became, True


def _size(
    where: str, old: schema.Dim, new: schema.Dim, of_old: Mapping[str, _Range], of_new: Mapping[str, _Range]
) -> Iterator[tuple[str, bool]]:
    """Compare the values that a size may have."""
    before, after = _range(old, of_old), _range(new, of_new)
    label = f"{where} " if where else ""
    if before is None or after is None:
        if (before is None) != (after is None):
            yield f"{label}is now {new}, before {old}", True
    elif before != after:
        fits = after[0] <= before[0] and before[1] <= after[1]
        yield f"{label}is now {_range_text(after)}, before {_range_text(before)}", not fits


def _range(size: schema.Dim, ranges: Mapping[str, _Range]) -> _Range | None:
    """The least and greatest value. None: the size is computed from others."""
    if isinstance(size, int):
        return size, size
    return ranges.get(size)


def _range_text(found: _Range) -> str:
    low, high = found
    if low == high:
        return f"{low:.0f}"
    return f"{low:.0f} or more" if math.isinf(high) else f"{low:.0f} to {high:.0f}"


def _equal_sizes(old: schema.Method, new: schema.Method, labels: Labels) -> Iterator[Found]:
    """Yield sizes that must be equal now and could differ before."""
    before, after = _symbol_positions(old), _symbol_positions(new)
    for positions in after.values():
        owners = {next((one for one, found in before.items() if size in found), size) for size in positions}
        if len(owners) > 1:
            yield "sizes", f"must be equal now: {', '.join(sorted(positions))}", True


def _symbol_positions(method: schema.Method) -> dict[str, list[str]]:
    """Map each symbol to the sizes that it is: ``x.shape[0]``."""
    found: dict[str, list[str]] = {}
    for leaf in method.leaves:
        if isinstance(leaf, schema.TensorLeaf):
            for dim, size in enumerate(leaf.shape):
                if isinstance(size, str) and expressions.is_symbol(size):
                    found.setdefault(size, []).append(f"{leaf.path}.shape[{dim}]")
    return found


# ---------------------------------------------------------------- results


def _result_types(bundle: Bundle, method: schema.Method, labels: Labels) -> dict[str, str]:
    graph = bundle.graph(method.forward)
    types = iter([labels.text(result_type(method, graph, result)) for result in method.results])
    return dict(_flat("result", method.outputs, types))


def _flat(path: str, tree: schema.Tree, types: Iterator[str]) -> Iterator[tuple[str, str]]:
    if isinstance(tree, schema.LeafNode):
        yield path, next(types, "")
    elif isinstance(tree, schema.GivenNode):
        yield path, "as the caller gave it"
    else:
        yield path, tree.name if isinstance(tree, schema.RecordNode) else type(tree).__name__.removesuffix("Node").lower()
        if isinstance(tree, schema.DictNode):
            steps = [f"[{key!r}]" for key in tree.keys]
        elif isinstance(tree, schema.RecordNode):
            steps = [f".{name}" for name in tree.fields]
        else:
            steps = [f"[{number}]" for number in range(len(tree.items))]
        for step, item in zip(steps, tree.items, strict=True):
            yield from _flat(path + step, item, types)


def _results(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Found]:
    for path in old.keys() - new.keys():
        yield path, "removed", True
    for path in new.keys() - old.keys():
        yield path, f"added, {new[path]}", True
    for path, kind in old.items():
        if path in new and new[path] != kind:
            yield path, f"is now {new[path]}, before {kind}", True

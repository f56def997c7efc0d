"""Flattens nested arguments by the recorded tree, and builds nested results from flat ones.

The caller's mappings may have their keys in any order. The recorded order is used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..errors import Problem
from ..format import schema
from ..text import SHOWN, shown

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "<missing>"})()
"""Stands for a leaf that the caller did not give; a problem has been reported for it."""

Flattener = Callable[[Any, list[Any], list[Problem]], None]


def count_leaves(tree: schema.Tree) -> int:
    """Number of leaves of ``tree``."""
    if isinstance(tree, schema.GivenNode):
        return 0
    return 1 if isinstance(tree, schema.LeafNode) else sum(map(count_leaves, tree.items))


def leaf_paths(tree: schema.Tree, path: str) -> list[str]:
    """A readable path for every leaf of ``tree``, in order."""
    if isinstance(tree, schema.LeafNode):
        return [path]
    if isinstance(tree, schema.GivenNode):
        return []
    if isinstance(tree, schema.RecordNode):
        steps = [f".{field[:SHOWN]}" for field in tree.fields]
    else:
        keys = tree.keys if isinstance(tree, schema.DictNode) else range(len(tree.items))
        steps = [f"[{shown(key)}]" for key in keys]
    return [leaf for step, item in zip(steps, tree.items, strict=True) for leaf in leaf_paths(item, path + step)]


def result_paths(method: schema.Method) -> list[str]:
    """A readable path for every result: those of the outputs, then those of the containers that the call changes."""
    updates = [path for i, one in enumerate(method.updates) for path in leaf_paths(one.tree, f"update {i}")]
    return [*leaf_paths(method.outputs, "result"), *updates]


def flattener(tree: schema.Tree, path: str) -> Flattener:
    """Compile ``tree`` into a function ``(value, leaves, problems)`` that appends the value's leaves in order."""
    if isinstance(tree, schema.LeafNode):
        return lambda value, leaves, problems: leaves.append(value)
    if isinstance(tree, schema.GivenNode):
        return lambda value, leaves, problems: None
    if isinstance(tree, schema.DictNode):
        return _mapping_flattener(tree, path)
    if isinstance(tree, schema.RecordNode):
        return _record_flattener(tree, path)
    return _sequence_flattener(tree, path)


def _fail(count: int, path: str, message: str, leaves: list[Any], problems: list[Problem]) -> None:
    leaves.extend([MISSING] * count)
    problems.append(Problem(path, message))


def _sequence_flattener(tree: schema.TupleNode | schema.ListNode, path: str) -> Flattener:
    parts = [flattener(item, f"{path}[{i}]") for i, item in enumerate(tree.items)]
    kind = tuple if isinstance(tree, schema.TupleNode) else list
    count, total = len(parts), count_leaves(tree)

    def flatten(value: Any, leaves: list[Any], problems: list[Problem]) -> None:
        if type(value) is not kind and not isinstance(value, (list, tuple)):
            return _fail(total, path, f"expected a {kind.__name__}, got {type(value).__name__}", leaves, problems)
        if len(value) != count:
            return _fail(total, path, f"expected {count} items, got {len(value)}", leaves, problems)
        for part, item in zip(parts, value, strict=True):
            part(item, leaves, problems)
        return None

    return flatten


def _mapping_flattener(tree: schema.DictNode, path: str) -> Flattener:
    keys = tree.keys
    parts = [
        (key, flattener(item, f"{path}[{shown(key)}]"), count_leaves(item)) for key, item in zip(keys, tree.items, strict=True)
    ]
    known, total = set(keys), count_leaves(tree)

    def flatten(value: Any, leaves: list[Any], problems: list[Problem]) -> None:
        if not isinstance(value, Mapping):
            return _fail(total, path, f"expected a dict, got {type(value).__name__}", leaves, problems)
        for key, part, size in parts:
            if key in value:
                part(value[key], leaves, problems)
            else:
                _fail(size, f"{path}[{shown(key)}]", "missing", leaves, problems)
        if len(value) != len(known):
            problems += [Problem(f"{path}[{key!r}]", "unexpected") for key in value if key not in known]
        return None

    return flatten


def _record_flattener(tree: schema.RecordNode, path: str) -> Flattener:
    parts = [
        (field, flattener(item, f"{path}.{field[:SHOWN]}"), count_leaves(item))
        for field, item in zip(tree.fields, tree.items, strict=True)
    ]

    def flatten(value: Any, leaves: list[Any], problems: list[Problem]) -> None:
        for field, part, size in parts:
            if isinstance(value, Mapping) and field in value:
                part(value[field], leaves, problems)
            elif hasattr(value, field):
                part(getattr(value, field), leaves, problems)
            else:
                _fail(size, f"{path}.{field[:SHOWN]}", f"missing on the {type(value).__name__} given", leaves, problems)
        others = [key for key in value if key not in known] if isinstance(value, Mapping) else tree.none_fields
        for name in others:
            given = value[name] if isinstance(value, Mapping) else getattr(value, name, None)
            if given is not None:
                problems.append(Problem(f"{path}.{name}", f"was None in the example, got a {type(given).__name__}"))

    known = {*tree.fields}
    return flatten


def unflattener(tree: schema.Tree) -> Callable[[Iterator[Any]], Any]:
    """Compile ``tree`` into a function that builds the nested value from its leaves."""
    if isinstance(tree, schema.LeafNode):
        return next
    if isinstance(tree, schema.GivenNode):
        path = tree.path
        return lambda leaves: leaves.given(path)  # type: ignore[attr-defined]
    if isinstance(tree, schema.DictNode) and not tree.ordered and all(isinstance(item, schema.LeafNode) for item in tree.items):
        names = tree.keys  # the most common result; avoids a function call for each item
        return lambda leaves: dict(zip(names, leaves, strict=False))
    parts = [unflattener(item) for item in tree.items]
    if isinstance(tree, schema.TupleNode):
        sequence = torch.Size if tree.size else tuple
        return lambda leaves: sequence([part(leaves) for part in parts])
    if isinstance(tree, schema.ListNode):
        return lambda leaves: [part(leaves) for part in parts]
    if isinstance(tree, schema.DictNode):
        keys, kind = tree.keys, OrderedDict if tree.ordered else dict
        return lambda leaves: kind(zip(keys, [part(leaves) for part in parts], strict=True))
    return _record_unflattener(tree, parts)


def _record_unflattener(tree: schema.RecordNode, parts: list[Callable[[Iterator[Any]], Any]]) -> Callable[[Iterator[Any]], Any]:
    from .records import maker  # most programs have none

    make = maker(tree)
    return lambda leaves: make([part(leaves) for part in parts])

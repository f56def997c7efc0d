"""Lets torch's tree functions look into dataclasses among the example inputs, for the time of a build."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree

_registered: set[type] = set()


def is_leaf_outside_builds(kind: Any) -> bool:
    """Whether torch's tree functions look into a class only because a build registered it."""
    return kind in _registered


@contextlib.contextmanager
def open_dataclasses(values: Any) -> Iterator[None]:
    """Inside the block, torch's tree functions flatten the dataclasses that are nested in ``values``.

    All fields are items, also those that are None or not arguments of ``__init__``.
    """
    made: list[type] = []
    try:
        while kinds := {type(leaf) for leaf in pytree.tree_leaves(values) if _is_dataclass(leaf)}:
            for kind in sorted(kinds, key=lambda kind: kind.__qualname__):
                _register(kind)
                made.append(kind)
        yield
    finally:
        for kind in made:
            pytree._deregister_pytree_node(kind)
            _registered.discard(kind)


def _is_dataclass(value: Any) -> bool:
    is_data = dataclasses.is_dataclass(value) and not isinstance(value, (type, torch.Tensor, torch.nn.Module))
    return is_data and type(value) not in pytree.SUPPORTED_NODES


def _register(kind: type) -> None:
    names = [field.name for field in dataclasses.fields(kind)]

    def flatten(value: Any) -> tuple[list[Any], list[str]]:
        return [getattr(value, name) for name in names], names

    def flatten_with_keys(value: Any) -> tuple[list[Any], list[str]]:
        return [(pytree.GetAttrKey(name), getattr(value, name)) for name in names], names

    def unflatten(items: Iterable[Any], context: list[str]) -> Any:
        made: Any = object.__new__(kind)  # __init__ and __post_init__ would run the user's code again
        for name, item in zip(context, items, strict=True):
            object.__setattr__(made, name, item)
        return made

    pytree.register_pytree_node(
        kind,
        flatten,
        unflatten,
        serialized_type_name=f"aotpack.argument.{kind.__module__}.{kind.__qualname__}.{id(kind)}",
        flatten_with_keys_fn=flatten_with_keys,
    )
    _registered.add(kind)

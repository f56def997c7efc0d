"""Containers of the caller that a call of a conformance vector changes or returns (A17, A18)."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from msgspec import structs

from aotpack_loader.format import schema
from aotpack_loader.format.interface import call_trees

Json = Any
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Watched:
    """The containers that a method changes, and the objects it hands back, found before its call."""

    def __init__(self, method: schema.Method, call: Arguments) -> None:
        self.method = method = structs.replace(method, updates=[one for one in method.updates if _is_passed(method, one, call)])
        self.containers = [at(method.inputs, update.path, call) for update in method.updates]
        self._objects = {path: at(method.inputs, path, call) for path in given(method)}
        self._before = [_items(container) for container in self.containers]

    def own(self, result: Any) -> dict[str, torch.Tensor]:
        """Whether each object of the caller's is still that object, in the result and in the containers."""
        values = [result, *self.containers]
        trees = [self.method.outputs, *(update.tree for update in self.method.updates)]
        return {
            f"own.{k}.{'.'.join(map(str, path))}": torch.tensor(found is self._objects[path])
            for k, (tree, value) in enumerate(zip(trees, values, strict=True))
            for path, found in given_in(tree, value)
        }

    def facts(self) -> Json:
        """The keys of each dictionary in their order, and the length of each list."""
        return {
            f"update.{k}": {"keys": list(container)} if isinstance(container, Mapping) else {"length": len(container)}
            for k, container in enumerate(self.containers)
        }

    def is_unchanged(self) -> bool:
        """Whether each container has the objects that it had, in the same places."""
        now = [_items(container) for container in self.containers]
        return [[(key, id(value)) for key, value in items] for items in now] == [
            [(key, id(value)) for key, value in items] for items in self._before
        ]


def _is_passed(method: schema.Method, update: schema.Update, call: Arguments) -> bool:
    """Whether the call has the container. It may leave out the buffers that it assigns (R13)."""
    position, number = update.path[:2]
    return not position or call_trees(method.inputs)[1].keys[number] in call[1]


def _items(container: Any) -> list[tuple[Any, Any]]:
    return list(container.items()) if isinstance(container, Mapping) else list(enumerate(container))


def passed_as(call: Json, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The positional arguments with the containers that ``same_containers`` and ``fixed_containers`` of a call ask for."""
    found = list(args)
    for number, first in call.get("same_containers", ()):
        found[number] = found[first]
    for number in call.get("fixed_containers", ()):
        value = found[number]
        found[number] = types.MappingProxyType(value) if isinstance(value, dict) else tuple(value)
    return tuple(found)


def given(method: schema.Method) -> Iterator[tuple[int, ...]]:
    """The paths of all objects of the caller that a call returns, or puts into containers of the caller."""
    for tree in (method.outputs, *(update.tree for update in method.updates)):
        waiting = [tree]
        while waiting:
            node = waiting.pop()
            if isinstance(node, schema.GivenNode):
                yield tuple(node.path)
            waiting += getattr(node, "items", [])


def given_in(tree: schema.Tree, value: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """The same paths, each with the value at that path."""
    if isinstance(tree, schema.GivenNode):
        yield tuple(tree.path), value
    for position, item in enumerate(getattr(tree, "items", [])):
        yield from given_in(item, at(tree, [position], value))


def at(tree: schema.Tree, path: Sequence[int], value: Any) -> Any:
    """The value that ``path`` through ``tree`` leads to in ``value``."""
    for position in path:
        if isinstance(tree, schema.RecordNode):
            value = getattr(value, tree.fields[position])
        else:
            value = value[tree.keys[position] if isinstance(tree, schema.DictNode) else position]
        tree = tree.items[position]  # type: ignore[union-attr]
    return value

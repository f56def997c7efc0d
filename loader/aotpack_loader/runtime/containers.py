"""Dictionaries and lists of the caller that a call changes or returns, as the same objects, as in eager.

Only methods that do so use this module (``Method.updates``, nodes of type ``given``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, Sequence
from typing import Any

from ..errors import InputError, Problem
from ..format import schema
from .tree import unflattener

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Containers:
    """What a method does to the caller's containers after its graphs have run."""

    def __init__(self, method: schema.Method) -> None:
        self._inputs, self._names = method.inputs, method.parameters
        self._build = unflattener(method.outputs)
        self._updates = [_Update(update, method.inputs) for update in method.updates]
        self._all = [(path, keys) for path, keys in _containers(method.inputs, [], []) if len(path) > 1] if self._updates else []

    def check(self, call: Call) -> None:
        """Check that each container to change has the right type and was passed only once.

        Raises:
            InputError: lists all that do not fit. Nothing was run.
        """
        paths: dict[int, list[list[Any]]] = {}
        for _, keys in self._all:
            paths.setdefault(id(_at(call, keys)), []).append(keys)
        problems = []
        for update in self._updates:
            container, where = _at(call, update.keys), self._shown(update.keys)
            if not isinstance(container, update.kind):
                wanted = "dict" if update.kind is MutableMapping else "list"
                problems.append(Problem(where, f"expected a {wanted}, which the model changes, got {type(container).__name__}"))
            others = [keys for keys in paths[id(container)] if keys != update.keys]
            if others:
                problems.append(Problem(where, f"the model changes it, and it is the same object as {self._shown(others[0])}"))
        if problems:
            raise InputError(
                "Some containers cannot be changed as the model changes them.", problems, hint="Pass a dict or list of its own."
            )

    def _shown(self, keys: Sequence[Any]) -> str:
        """The path of a container in the caller's words: ``batch['x']``."""
        first = keys[1]
        if keys[0] == 0:
            first = self._names[first] if first < len(self._names) else f"args[{first}]"
        return str(first) + "".join(f".{key}" if isinstance(key, _Field) else f"[{key!r}]" for key in keys[2:])

    def __call__(self, call: Call, results: Sequence[Any]) -> Any:
        """Change the containers and return the nested result of a call."""
        leaves = _Leaves(iter(results), lambda path: _at(call, _keys(self._inputs, path)))
        result = self._build(leaves)
        contents = [update.build(leaves) for update in self._updates]
        found = [_at(call, update.keys) for update in self._updates]  # before an update takes another one's path away
        for update, container, content in zip(self._updates, found, contents, strict=True):
            update.apply(container, content)
        return result


class _Update:
    """The contents of one container after the call."""

    def __init__(self, update: schema.Update, inputs: schema.Tree) -> None:
        self.keys = _keys(inputs, update.path)
        self.kind: type = MutableMapping if isinstance(update.tree, schema.DictNode) else MutableSequence
        self.build = unflattener(update.tree)
        self._removed: list[Any] = []
        before = _node(inputs, update.path)
        if isinstance(update.tree, schema.DictNode) and isinstance(before, schema.DictNode):
            kept = _kept(before.keys, update.tree.keys)
            self._removed = [key for key in before.keys if key not in kept]

    def apply(self, container: Any, content: Any) -> None:
        if self.kind is MutableSequence:
            container[:] = content
            return
        for key in self._removed:
            del container[key]
        for key, value in content.items():
            if key not in container or container[key] is not value:
                container[key] = value


def _kept(before: Sequence[Any], after: Sequence[Any]) -> set[Any]:
    """The keys that keep their position. All keys after them have been added at the end, in the new order."""
    kept: list[Any] = []
    left = iter(before)
    for key in after:
        if key not in left:  # continues after the last key that matched
            break
        kept.append(key)
    return set(kept)


class _Leaves:
    """The flat results of a call, and access to the objects that the caller passed."""

    def __init__(self, values: Iterator[Any], given: Callable[[Sequence[int]], Any]) -> None:
        self._values, self.given = values, given

    def __iter__(self) -> Iterator[Any]:
        return self._values

    def __next__(self) -> Any:
        return next(self._values)


def _node(tree: schema.Tree, path: Sequence[int]) -> schema.Tree:
    for position in path:
        tree = tree.items[position]  # type: ignore[union-attr]
    return tree


def _keys(tree: schema.Tree, path: Sequence[int]) -> list[Any]:
    """Keys, indices and field names that lead from ``(args, kwargs)`` to the node that ``path`` names in ``tree``."""
    found: list[Any] = []
    for position in path:
        if isinstance(tree, schema.DictNode):
            found.append(tree.keys[position])
        else:
            found.append(_Field(tree.fields[position]) if isinstance(tree, schema.RecordNode) else position)
        tree = tree.items[position]  # type: ignore[union-attr]
    return found


class _Field(str):
    """The name of a field of a record."""

    __slots__ = ()


def _at(call: Call, keys: Sequence[Any]) -> Any:
    value: Any = call
    for key in keys:
        value = getattr(value, key) if isinstance(key, _Field) and hasattr(value, key) else value[key]
    return value


def _containers(tree: schema.Tree, path: list[int], keys: list[Any]) -> Iterator[tuple[list[int], list[Any]]]:
    """All dictionaries and lists among the arguments."""
    if isinstance(tree, (schema.LeafNode, schema.GivenNode)):
        return
    if isinstance(tree, (schema.DictNode, schema.ListNode)):
        yield path, keys
    for position, item in enumerate(tree.items):
        yield from _containers(item, [*path, position], [*keys, *_keys(tree, [position])])

"""What a call does to the dictionaries and lists among its arguments, and how that is found.

A :class:`Run` holds the contents of all containers before a call. Afterwards it compares them.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from msgspec import structs

from aotpack_loader.errors import Problem
from aotpack_loader.format import schema

from .inputs.examples import argument_names

DICTIONARIES = (dict, OrderedDict, defaultdict)
OPEN = (*DICTIONARIES, list, tuple)
Path = tuple[int, ...]
"""Item numbers that lead to an object, starting at ``(args, kwargs)`` or at a result."""
Inside = tuple[tuple[Path, Path], ...]
"""The caller's objects inside a value: for each, its path in the value and its path in the arguments."""


@dataclass(frozen=True)
class Entry:
    """An item of a changed container.

    It is the caller's own object with the path ``source``, or a new value if that is None.
    """

    key: Any
    source: Path | None = None
    inside: Inside = ()


@dataclass(frozen=True)
class Changed:
    """An argument container that a call changes, and its items after the call.

    ``path`` is its path in the arguments by item numbers, and ``keys`` is the same path by keys.
    """

    path: Path
    keys: tuple[Any, ...]
    is_dictionary: bool
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Containers:
    """What a call does to the caller's containers: those it changes, and those that its result contains."""

    changed: tuple[Changed, ...] = ()
    returned: Inside = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.returned)

    def trees(self, result: schema.Tree, changes: schema.Tree) -> tuple[schema.Tree, list[schema.Update]]:
        """Return the trees of the result and of the changes, as a bundle describes them.

        ``result`` and ``changes`` are the two values that the model returns inside :func:`traced`.
        """
        updates = []
        for change, values in zip(self.changed, changes.items, strict=True):  # type: ignore[union-attr]
            new = iter(values.items)
            items: list[schema.Tree] = []
            for entry in change.entries:
                source = entry.source
                items.append(_with_sources(next(new), entry.inside) if source is None else schema.GivenNode([*source]))
            keys = [entry.key for entry in change.entries]
            made = schema.DictNode(keys, items) if change.is_dictionary else schema.ListNode(items)
            updates.append(schema.Update([*change.path], made))
        return _with_sources(result, self.returned), updates


def _with_sources(tree: schema.Tree, inside: Sequence[tuple[Path, Path]]) -> schema.Tree:
    """Return ``tree`` with the caller's objects instead of the trace's empty tuples."""
    if not inside:
        return tree
    if not inside[0][0]:
        return schema.GivenNode([*inside[0][1]])
    below = [[(path[1:], source) for path, source in inside if path[0] == i] for i in range(len(tree.items))]  # type: ignore[union-attr]
    items = [_with_sources(item, some) for item, some in zip(tree.items, below, strict=True)]  # type: ignore[union-attr]
    return structs.replace(tree, items=items)


@dataclass(frozen=True)
class _Held:
    """A container before a call, with its keys and items.

    Other kinds than dictionary, list and tuple have their leaves.
    """

    value: Any
    keys: tuple[Any, ...]
    names: tuple[Any, ...]
    items: tuple[Any, ...]

    @property
    def is_open(self) -> bool:
        return type(self.value) in OPEN

    def changed(self) -> bool:
        names, items = content(self.value)
        return names != self.names or any(a is not b for a, b in zip(items, self.items, strict=True))


class Run:
    """A call of the model, with the contents of its containers before and after the call."""

    def __init__(self, model: torch.nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        self._model = model
        self.result: Any = None
        self._held: dict[Path, _Held] = {}
        self._paths: dict[int, list[Path]] = {}
        for i, part in enumerate((call[0], tuple(call[1].values()))):
            keys = list(call[1]) if i else list(range(len(part)))
            for j, value in enumerate(part):
                self._hold(value, (i, j), (i, keys[j]))

    def _hold(self, value: Any, path: Path, keys: tuple[Any, ...]) -> None:
        if isinstance(value, torch.Tensor) or is_container(value):
            self._paths.setdefault(id(value), []).append(path)
        if not is_container(value):
            return
        names, items = content(value)
        self._held[path] = held = _Held(value, keys, names, items)
        if held.is_open:
            for i, (name, item) in enumerate(zip(names, items, strict=True)):
                self._hold(item, (*path, i), (*keys, name))

    def containers_differ(self) -> bool:
        return any(held.changed() for held in self._held.values())

    def after(self) -> tuple[Containers, list[Problem]]:
        """Return what the call did, and the changes that a bundle cannot repeat."""
        changed, problems = [], []
        for path, held in self._held.items():
            if not held.changed():
                continue
            if held.is_open:
                changed.append(Changed(path, held.keys, type(held.value) in DICTIONARIES, self._entries(path, held)))
            else:
                kind = type(held.value)
                problems.append(Problem(shown(self._model, held.keys), f"a {kind.__module__}.{kind.__qualname__}, is changed"))
        return Containers(tuple(changed), tuple(self._inside(self.result, ()))), problems

    def _entries(self, path: Path, held: _Held) -> tuple[Entry, ...]:
        names, items = content(held.value)
        before = {name: (i, item) for i, (name, item) in enumerate(zip(held.names, held.items, strict=True))}
        entries = []
        for name, item in zip(names, items, strict=True):
            i, old = before.get(name, (0, _MISSING))
            source = (*path, i) if item is old else self._source_of(item)
            entries.append(Entry(name, source, () if source is not None else tuple(self._inside(item, ()))))
        return tuple(entries)

    def _source_of(self, value: Any) -> Path | None:
        """Return the path at which the caller gave this object.

        None if there is no such path, or more than one.
        """
        paths = self._paths.get(id(value), [])
        return paths[0] if len(paths) == 1 else None

    def _inside(self, value: Any, path: Path) -> Iterator[tuple[Path, Path]]:
        """Yield the caller's own containers inside a value, with both paths."""
        if not is_container(value):
            return
        source = self._source_of(value)
        if source is not None and type(value) is not tuple:
            yield path, source
        elif type(value) in OPEN:
            for i, item in enumerate(content(value)[1]):
                yield from self._inside(item, (*path, i))


_MISSING = object()


def is_container(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) and not pytree.tree_structure(value).is_leaf()


def content(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the keys or positions of a container, and its items.

    Other kinds give their structure and leaves.
    """
    if type(value) in DICTIONARIES:
        return tuple(value), tuple(value.values())
    if type(value) in (list, tuple):
        return tuple(range(len(value))), tuple(value)
    leaves, structure = pytree.tree_flatten(value)
    return (str(structure), *range(len(leaves))), tuple(leaves)


def shown(model: torch.nn.Module, keys: Sequence[Any]) -> str:
    """Return the path of the argument as its user writes it: ``batch['x']``."""
    first = keys[1] if keys[0] else argument_names(model, keys[1] + 1)[-1]
    return str(first) + "".join(f"[{key!r}]" for key in keys[2:])

"""Traces dictionaries and lists among the arguments that the model changes or returns.

A run on fake tensors finds them first. A trace contains tensors only. So while it is traced, the
model gets its own copies of these containers. A front end follows them like containers that the
model creates. The new items are returned beside the model's result, and the loader then changes
the caller's containers.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType, MethodType
from typing import Any

import torch
import torch.utils._pytree as pytree
from msgspec import structs

from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import schema

from .. import _torch as compat
from .. import origin
from . import source_lines
from .dry_run import repeat
from .inputs.examples import argument_names

_DICTIONARIES = (dict, OrderedDict, defaultdict)
_OPEN = (*_DICTIONARIES, list, tuple)
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
    """Return ``tree`` with the caller's objects in place of the trace's empty tuples."""
    if not inside:
        return tree
    if not inside[0][0]:
        return schema.GivenNode([*inside[0][1]])
    below = [[(path[1:], source) for path, source in inside if path[0] == i] for i in range(len(tree.items))]  # type: ignore[union-attr]
    items = [_with_sources(item, some) for item, some in zip(tree.items, below, strict=True)]  # type: ignore[union-attr]
    return structs.replace(tree, items=items)


def find(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, on_copies: bool = False) -> Containers:
    """Run the model on fake tensors and return what it does to containers among its arguments.

    If that run fails, the result is empty, and a front end reports the error later. With
    ``on_copies`` the model then runs on copies of its arguments instead.

    Raises:
        UnsupportedError: the model changes a container other than a dictionary or list, or one
            that is passed twice.
    """
    if not any(_is_container(value) for value in (*args, *kwargs.values())):
        return Containers()
    with repeat.unchanged(model), compat.kept_state_changes(), compat.quiet_torch_logs(), _watched(model) as seen:
        try:
            compat.run_on_fake_tensors(compat.fake_mode_with_shapes(), model, args, kwargs, strict=False)
        except Exception:  # a front end reports the error later
            if not on_copies:
                return Containers()
            _run_on_copies(model, args, kwargs)
    containers, problems = seen[0].after()
    problems += _problems_of_twice(model, containers, (args, kwargs))
    if problems:
        with repeat.unchanged(model), compat.kept_state_changes(), compat.quiet_torch_logs(), _lines(model) as lines:
            compat.run_on_fake_tensors(compat.fake_mode_with_shapes(), model, args, kwargs, strict=False)
        raise _refusal(problems, lines)
    return containers


def _refusal(problems: Sequence[Problem], lines: Sequence[str] = ()) -> UnsupportedError:
    where = f" ({'; '.join(lines)})" if lines else ""
    return UnsupportedError(
        "The model changes arguments in a way that a bundle cannot repeat.",
        [Problem(problem.where, problem.message + where) for problem in problems],
        hint="Return the new values; or pass dictionaries and lists, each of its own, and change those.",
    )


def _run_on_copies(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def twin(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    state = {name: twin(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    args, kwargs = pytree.tree_map_only(torch.Tensor, twin, (args, kwargs))
    with torch.random.fork_rng(devices=[]):
        torch.func.functional_call(model, state, args, kwargs)


@contextlib.contextmanager
def refused(model: torch.nn.Module) -> Iterator[None]:
    """Refuse a trace in which the model changes containers that :func:`find` did not report.

    Raises:
        UnsupportedError: names these containers.
    """
    with _watched(model) as seen:
        yield
    if seen:
        containers, problems = seen[-1].after()
        problems += [Problem(_shown(model, changed.keys), "is changed") for changed in containers.changed]
        if problems:
            raise _refusal(problems)


@contextlib.contextmanager
def traced(model: torch.nn.Module, containers: Containers) -> Iterator[None]:
    """Let the model change its own copies of containers, and return their new items with its result.

    In these values, an empty tuple stands for each of the caller's own objects. The wrapper is set
    as the ``forward`` attribute of the instance.
    """
    if not containers:
        yield
        return
    forward, returned = model.forward, containers.returned
    routes = [changed.keys for changed in containers.changed]
    new = [[(entry.key, entry.inside) for entry in changed.entries if entry.source is None] for changed in containers.changed]

    def with_changes(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _shallow_copy((args, kwargs))
        found = [_at(call, route) for route in routes]
        result = forward(*call[0], **call[1])
        changes = [
            [_without(container[key], inside) for key, inside in items] for container, items in zip(found, new, strict=True)
        ]
        return _without(result, returned), changes

    with _forward(model, with_changes):
        yield


def _shallow_copy(value: Any) -> Any:
    """Return a copy of a container with the same items."""
    if type(value) is dict:
        return {key: _shallow_copy(item) for key, item in value.items()}
    if type(value) is OrderedDict:
        return OrderedDict([(key, _shallow_copy(item)) for key, item in value.items()])
    if type(value) is defaultdict:
        return defaultdict(value.default_factory, {key: _shallow_copy(item) for key, item in value.items()})
    if type(value) is list:
        return [_shallow_copy(item) for item in value]
    return tuple([_shallow_copy(item) for item in value]) if type(value) is tuple else value


def _without(value: Any, inside: Inside) -> Any:
    """Return ``value`` with empty tuples in place of the caller's own objects."""
    if len(inside) == 0:
        return value
    if len(inside[0][0]) == 0:
        return ()
    below = [tuple([(path[1:], source) for path, source in inside if path[0] == i]) for i in range(len(value))]
    if isinstance(value, dict):
        return {key: _without(value[key], some) for key, some in zip(list(value), below)}  # noqa: B905 - traced by Dynamo
    items = [_without(value[i], below[i]) for i in range(len(value))]
    return tuple(items) if isinstance(value, tuple) else items


def _at(call: Any, keys: Sequence[Any]) -> Any:
    for key in keys:
        call = call[key]
    return call


@contextlib.contextmanager
def _forward(model: torch.nn.Module, function: Any) -> Iterator[None]:
    """Use ``function`` as the model's ``forward`` inside the block, with the signature of the original."""
    before, own = model.forward, "forward" in vars(model)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *inspect.signature(before).parameters.values()]
    if parameters[1:] and parameters[1].name == "self":
        parameters = parameters[1:]
    function.__signature__ = inspect.Signature(
        [p.replace(kind=p.POSITIONAL_ONLY) if i == 0 else p for i, p in enumerate(parameters)]
    )
    model.__dict__["forward"] = MethodType(function, model)
    try:
        yield
    finally:
        if own:
            model.__dict__["forward"] = before
        else:
            model.__dict__.pop("forward", None)


# ---------------------------------------------------------------- observing a run


@contextlib.contextmanager
def _watched(model: torch.nn.Module) -> Iterator[list[_Run]]:
    """Yield a list that holds the model's last call in the block."""
    found: list[_Run] = []
    forward = model.forward

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        found[:] = [_Run(model, (args, kwargs))]
        found[0].result = forward(*args, **kwargs)
        return found[0].result

    with _forward(model, watched):
        yield found


@contextlib.contextmanager
def _lines(model: torch.nn.Module) -> Iterator[list[str]]:
    """Yield a list that receives the first source line of the model, or of a library, that changes a container."""
    found: list[str] = []
    forward = model.forward

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        run, last = _Run(model, (args, kwargs)), ""

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if found or not origin.is_model(frame.f_code.co_filename):
                return None
            if last and (run.containers_differ()):
                found.append(last)
                return None
            last = source_lines.of_frame(frame)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return forward(*args, **kwargs)
        finally:
            sys.settrace(before)
            if not found and last and run.containers_differ():
                found.append(last)

    with _forward(model, watched):
        yield found


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
        return type(self.value) in _OPEN

    def changed(self) -> bool:
        names, items = _content(self.value)
        return names != self.names or any(a is not b for a, b in zip(items, self.items, strict=True))


class _Run:
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
        if isinstance(value, torch.Tensor) or _is_container(value):
            self._paths.setdefault(id(value), []).append(path)
        if not _is_container(value):
            return
        names, items = _content(value)
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
                changed.append(Changed(path, held.keys, type(held.value) in _DICTIONARIES, self._entries(path, held)))
            else:
                kind = type(held.value)
                problems.append(Problem(_shown(self._model, held.keys), f"a {kind.__module__}.{kind.__qualname__}, is changed"))
        return Containers(tuple(changed), tuple(self._inside(self.result, ()))), problems

    def _entries(self, path: Path, held: _Held) -> tuple[Entry, ...]:
        names, items = _content(held.value)
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
        if not _is_container(value):
            return
        source = self._source_of(value)
        if source is not None and type(value) is not tuple:
            yield path, source
        elif type(value) in _OPEN:
            for i, item in enumerate(_content(value)[1]):
                yield from self._inside(item, (*path, i))


_MISSING = object()


def _is_container(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) and not pytree.tree_structure(value).is_leaf()


def _content(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the keys or positions of a container, and its items.

    Other kinds give their structure and leaves.
    """
    if type(value) in _DICTIONARIES:
        return tuple(value), tuple(value.values())
    if type(value) in (list, tuple):
        return tuple(range(len(value))), tuple(value)
    leaves, structure = pytree.tree_flatten(value)
    return (str(structure), *range(len(leaves))), tuple(leaves)


def _problems_of_twice(
    model: torch.nn.Module, containers: Containers, call: tuple[tuple[Any, ...], dict[str, Any]]
) -> list[Problem]:
    """Return a problem for each changed container that is passed twice.

    Every later call would have to pass one object at both paths.
    """
    run = _Run(model, call)
    problems = []
    for changed in containers.changed:
        paths = run._paths[id(_at(call, changed.keys))]
        if len(paths) > 1:
            others = [_shown(model, run._held[path].keys) for path in paths if path != changed.path]
            problems.append(Problem(_shown(model, changed.keys), f"is changed, and is the same object as {', '.join(others)}"))
    return problems


def _shown(model: torch.nn.Module, keys: Sequence[Any]) -> str:
    """Return the path of the argument as its user writes it: ``batch['x']``."""
    first = keys[1] if keys[0] else argument_names(model, keys[1] + 1)[-1]
    return str(first) + "".join(f"[{key!r}]" for key in keys[2:])

"""The rule for containers of the caller that a call changes or returns (C36)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from .. import text
from ..errors import Problem
from . import schema


def problems(program: schema.Program) -> Iterator[Problem]:
    """C36: the paths of ``given`` nodes and updates exist."""
    for name, method in program.methods.items():
        at = f"$.methods[{text.shown(name)}]"
        if holds_given(method.inputs):
            yield Problem(f"{at}.inputs", "C36: an argument is a node of type `given`")
        trees: list[schema.Tree] = [method.outputs, *(update.tree for update in method.updates)]
        for path in itertools.chain.from_iterable(map(_given, trees)):
            if _node(method.inputs, path) is None:
                yield Problem(f"{at}.outputs", f"C36: no argument is at {path}")
        seen = set[tuple[int, ...]]()
        for i, update in enumerate(method.updates):
            if len(update.path) < 2 or type(_node(method.inputs, update.path)) is not type(update.tree):
                yield Problem(f"{at}.updates[{i}]", f"C36: no such container of the caller is at {update.path}")
            if tuple(update.path) in seen:
                yield Problem(f"{at}.updates[{i}]", "C36: a container is changed twice")
            seen.add(tuple(update.path))
        if _is_cyclic(method):
            yield Problem(f"{at}.updates", "C36: a container would hold itself")


def holds_given(tree: schema.Tree) -> bool:
    """Whether ``tree`` contains an object that the caller passed."""
    return next(_given(tree), None) is not None


def _given(tree: schema.Tree) -> Iterator[list[int]]:
    """The paths of all ``given`` nodes."""
    if isinstance(tree, schema.GivenNode):
        yield tree.path
    elif not isinstance(tree, schema.LeafNode):
        for item in tree.items:
            yield from _given(item)


def _is_cyclic(method: schema.Method) -> bool:
    """Whether a container of the caller's would hold itself, directly or in others, after the call."""
    changed = {tuple(update.path): [tuple(path) for path in _given(update.tree)] for update in method.updates}

    def held(path: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The containers in the one at ``path``, after the call."""
        if path in changed:
            return changed[path]
        items = getattr(_node(method.inputs, path), "items", ())
        return [(*path, i) for i, item in enumerate(items) if not isinstance(item, schema.LeafNode)]

    finished: set[tuple[int, ...]] = set()
    for start in changed:
        pending = [(start, iter(held(start)))]
        above = {start}
        while pending:
            path, below = pending[-1]
            found = next(below, None)
            if found is None:
                pending.pop()
                above.discard(path)
                finished.add(path)
            elif found in above:
                return True
            elif found not in finished:
                above.add(found)
                pending.append((found, iter(held(found))))
    return False


def _node(tree: schema.Tree, path: Sequence[int]) -> schema.Tree | None:
    for position in path:
        items = getattr(tree, "items", ())
        if position >= len(items):
            return None
        tree = items[position]
    return tree


def shown(method: schema.Method, path: Sequence[int]) -> str:
    """The path of an argument in the author's words: ``batch['x']``."""
    inputs: Any = method.inputs
    args, kwargs = inputs.items
    position, names = path[1], method.parameters
    if path[0]:
        tree: Any = kwargs.items[position]
        word = str(kwargs.keys[position])
    else:
        word = names[position] if position < len(names) else f"args[{position}]"
        tree = args.items[position]
    for position in path[2:]:
        if isinstance(tree, schema.RecordNode):
            word += f".{tree.fields[position]}"
        else:
            word += f"[{(tree.keys[position] if isinstance(tree, schema.DictNode) else position)!r}]"
        tree = tree.items[position]
    return word

"""Bind ``(args, kwargs)`` of a call to flat leaves, by Python's rules for parameters.

Errors use the parameter names of the original (``img``, ``batch['labels']``). An argument that the
original takes through ``*rest`` has no name, so errors give its index (``args[3]``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..devices.literals import literal
from ..errors import Problem
from ..format import schema
from ..format.interface import call_trees
from ..text import SHOWN
from .tree import MISSING, Flattener, count_leaves, flattener

Describe = Callable[[Any], str]


class Arguments:
    """Binds the arguments of a call to the recorded trees (rule A3).

    Args:
        method: its trees, parameters and defaults.
        describe: shows a value in a message.
    """

    def __init__(self, method: schema.Method, describe: Describe) -> None:
        args_tree, kwargs_tree = call_trees(method.inputs)
        self._parameters, self._describe = method.parameters, describe
        self._count = len(args_tree.items)
        self._keys = [str(key) for key in kwargs_tree.keys]
        self._keywords = frozenset(self._keys)
        self._defaults = {name: literal(value) for name, value in method.defaults.items()}
        names = [self._name(position) for position in range(self._count)]
        self._positional = _flatteners(args_tree.items, names)
        self._named = _flatteners(kwargs_tree.items, self._keys)
        self._is_flat = all(isinstance(item, schema.LeafNode) for item in [*args_tree.items, *kwargs_tree.items])

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any], problems: list[Problem]) -> list[Any]:
        """Return the caller's leaves in order, unchecked. What does not fit the trees is added to ``problems``."""
        if len(args) != self._count or kwargs.keys() != self._keywords:
            args, kwargs = self._bind(args, kwargs)
            self._report(args, kwargs, problems)
        elif self._is_flat:
            return [*args, *[kwargs[key] for key in self._keys]]
        leaves: list[Any] = []
        for i, (flatten, count) in enumerate(self._positional):
            _flatten(flatten, count, args[i] if i < len(args) else MISSING, leaves, problems)
        for key, (flatten, count) in zip(self._keys, self._named, strict=True):
            _flatten(flatten, count, kwargs.get(key, MISSING), leaves, problems)
        return leaves

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments by position or keyword as at build."""
        stand = len(args) == self._count and kwargs.keys() == self._keywords
        return (args, kwargs) if stand else self._bind(args, kwargs)

    def _name(self, position: int) -> str:
        return self._parameters[position] if position < len(self._parameters) else f"args[{position}]"

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Move arguments between position and keyword until they match the build."""
        names = self._parameters
        given = dict(kwargs)
        positional = list(args)
        while len(positional) < self._count and len(positional) < len(names) and names[len(positional)] in given:
            positional.append(given.pop(names[len(positional)]))
        while len(positional) > self._count and len(positional) <= len(names):
            name = names[len(positional) - 1]
            if name not in self._keywords or name in given:
                break
            given[name] = positional.pop()
        while len(positional) > self._count and len(positional) <= len(names):
            if not self._is_default(names[len(positional) - 1], positional[-1]):
                break
            positional.pop()
        for name in given.keys() - self._keywords:
            if self._is_default(name, given[name]):
                del given[name]
        return tuple(positional), given

    def _is_default(self, name: str, value: Any) -> bool:
        """Whether a call passes the default explicitly where the example left it out."""
        return name in self._defaults and same(self._defaults[name], value)

    def _report(self, args: Sequence[Any], kwargs: Mapping[str, Any], problems: list[Problem]) -> None:
        """Report arguments that are missing, given twice or unknown, in Python's words."""
        missing = [self._name(i) for i in range(len(args), self._count)]
        missing += [key for key in self._keys if key not in kwargs]
        problems += [Problem("", f"missing argument {name!r}") for name in missing]
        if len(args) > max(self._count, len(self._parameters)):
            problems.append(Problem("", f"expected {self._count} positional arguments, got {len(args)}"))
        else:
            problems += [self._surplus(self._name(i), args[i], kwargs) for i in range(self._count, len(args))]
        for name in kwargs:
            if name in self._parameters[: min(len(args), self._count)]:
                problems.append(_given_twice(name))
            elif name not in self._keywords:
                problems.append(self._unexpected(name, kwargs[name]))

    def _surplus(self, name: str, value: Any, kwargs: Mapping[str, Any]) -> Problem:
        return _given_twice(name) if name in kwargs else self._unexpected(name, value)

    def _unexpected(self, name: str, value: Any) -> Problem:
        if name in self._defaults:
            left_out = f"the bundle was built with its default {self._defaults[name]!r}"
            return Problem(name, f"{left_out}, got {self._describe(value)}; build with an example that passes it")
        if name in self._parameters:
            return Problem(name, "the bundle was built without this argument; build with an example that passes it")
        return Problem("", f"unexpected argument {name!r}")


def _given_twice(name: str) -> Problem:
    return Problem("", f"argument {name!r} is given twice, by position and by name")


def _flatteners(trees: Sequence[schema.Tree], names: Sequence[str]) -> list[tuple[Flattener, int]]:
    return [(flattener(tree, name[:SHOWN]), count_leaves(tree)) for tree, name in zip(trees, names, strict=True)]


def _flatten(flatten: Flattener, count: int, value: Any, leaves: list[Any], problems: list[Problem]) -> None:
    if value is MISSING:  # reported already
        leaves.extend([MISSING] * count)
    else:
        flatten(value, leaves, problems)


def same(expected: Any, value: Any) -> bool:
    """Whether two constants have the same type and are equal. Two NaN count as equal."""
    return type(value) is type(expected) and bool(value == expected or (value != value and expected != expected))

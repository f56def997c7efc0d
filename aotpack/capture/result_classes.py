"""Finds methods of result classes that a bundle leaves out: it keeps the fields of a result only."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from .. import origin
from .._torch.tracing.aot_autograd import tree_children

_SHOWN = ("__str__", "__repr__", "__iter__", "__len__", "__getitem__", "__contains__", "__eq__", "__bool__", "__call__")
"""Special methods that a user of a result calls."""


def left_out(spec: Any) -> list[str]:
    """Return what the loader's results lack, as sentences about the classes in a result.

    ``spec`` is the result's nesting as a pytree spec. Model outputs of packages lack nothing: the
    loader makes those of the original class.
    """
    found = []
    for kind in dict.fromkeys(_classes(spec)):
        if kind is defaultdict:
            found.append("a defaultdict is returned as a dict, without its default")
        elif names := [name for name in dict.fromkeys(_own(kind)) if name in _SHOWN or not name.startswith("_")]:
            found.append(f"a {kind.__qualname__} keeps its fields, and not {', '.join(names)} of its class")
    return found


def _classes(spec: Any) -> Iterator[type]:
    if spec.is_leaf():
        return
    context = spec.context
    for kind in (spec.type, context, *(context if isinstance(context, tuple) else ())):
        if kind is defaultdict or (
            isinstance(kind, type)
            and not issubclass(kind, Mapping)
            and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))
        ):
            yield kind
    for child in tree_children(spec):
        yield from _classes(child)


def _own(kind: type) -> Iterator[str]:
    """Yield the methods and properties that the user's code defines."""
    for base in kind.__mro__:
        for name, value in vars(base).items():
            function = value
            if isinstance(value, property):
                function = value.fget
            elif isinstance(value, functools.cached_property):
                function = value.func
            elif isinstance(value, (classmethod, staticmethod)):
                function = value.__func__
            code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
            if code is not None and origin.is_model(code.co_filename):
                yield name

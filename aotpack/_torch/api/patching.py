"""Replaces attributes of torch, the only way in which the compiler does so.

Each replacement names its entry of the register of fixes. What was replaced is recorded, and tests
compare the record with the entries.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

from .counting import counted

Replacing = contextlib.AbstractContextManager[Any]


class Replacement(NamedTuple):
    """An attribute of torch that was replaced: the entry's id, what has the attribute, and its name.

    For an attribute of an object, ``owner`` is the object's class.
    """

    identifier: str
    owner: str
    name: str


_made: set[Replacement] = set()


def replacements() -> Collection[Replacement]:
    """What was replaced in this process."""
    return _made


def patched(identifier: str, owner: Any, name: str, function: Callable[..., Any]) -> Replacing:
    """Replace a function of torch, and count the calls."""
    return replaced(identifier, owner, name, counted(identifier, function))


def replaced(identifier: str, owner: Any, name: str, function: Callable[..., Any]) -> Replacing:
    """Replace a function of torch.

    Static methods and class methods (``cls`` comes first) stay such. ``__wrapped__`` is the
    original.
    """
    original = inspect.getattr_static(owner, name)
    function.__wrapped__ = getattr(original, "__func__", original)  # type: ignore[attr-defined]
    kind = type(original) if isinstance(original, (staticmethod, classmethod)) else None
    return hooked(identifier, owner, name, kind(function) if kind else function)


def hooked(identifier: str, owner: Any, name: str, value: Any, *, create: bool = False) -> Replacing:
    """Replace any attribute of torch by ``value`` as it is; ``create``: torch may have none."""
    _made.add(Replacement(identifier, dotted(owner), name))
    replacing: Replacing = mock.patch.object(owner, name, value, create=create)
    return replacing


@contextlib.contextmanager
def with_items(
    identifier: str, owner: Any, name: str, items: Mapping[Any, Any] | None = None, without: Collection[Any] = ()
) -> Iterator[None]:
    """Add ``items`` to a dictionary of torch, and leave out the keys ``without``."""
    _made.add(Replacement(identifier, dotted(owner), name))
    table: dict[Any, Any] = getattr(owner, name)
    with mock.patch.dict(table, items or {}):
        for key in without:
            table.pop(key, None)
        yield


def attribute_set(owner: object, name: str, value: Any) -> Replacing:
    """Set an attribute of a single object. It changes no code of torch, so no entry describes it."""
    if isinstance(owner, ModuleType | type):
        raise TypeError(f"{name} of {owner} is no attribute of a single object")
    return mock.patch.object(owner, name, value)


def replaced_outside_torch(owner: Any, name: str, value: Any) -> Replacing:
    """Replace an attribute of another package."""
    if dotted(owner).partition(".")[0] == "torch":
        raise TypeError(f"{dotted(owner)} is torch's own: an entry of the register describes its replacements")
    return mock.patch.object(owner, name, value)


def dotted(owner: Any) -> str:
    """The name of a module or class; of another object that of its class."""
    if isinstance(owner, ModuleType):
        return owner.__name__
    kind = owner if isinstance(owner, type) else type(owner)
    return f"{kind.__module__}.{kind.__qualname__}"

"""Takes snapshots of the Python values that a model's code can reach, to detect and undo changes.

Reachable are the attributes of its modules, the globals and class attributes that its functions
name, and the variables that they close over. So are the contents of containers, objects and
Python modules there.
Code of installed packages is not followed.
"""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from ... import origin

_DICTIONARIES = (dict, OrderedDict, defaultdict)
_PLAIN = (bool, int, float, complex, str, bytes)
_GONE = object()

Items = dict[Any, Any]


@dataclass(frozen=True)
class _Holder:
    """Something that holds values: a container, a closure cell, a class, or globals.

    ``names`` limits the entries of a class or of globals. ``path`` is a format string with a field
    for an entry's key.
    """

    owner: Any
    path: str
    names: frozenset[str] | None = None

    def read(self) -> Items:
        """Return the current entries."""
        owner = self.owner
        if isinstance(owner, CellType):
            return _contents(owner)
        if self.names is not None:
            found = vars(owner) if isinstance(owner, type) else owner
            return {name: found[name] for name in self.names if name in found}
        if isinstance(owner, dict):
            return dict(owner)
        return dict.fromkeys(owner) if isinstance(owner, set) else dict(enumerate(owner))

    def write(self, items: Items) -> None:
        """Set the entries to ``items``."""
        owner = self.owner
        if isinstance(owner, CellType):
            owner.cell_contents = items[""]
        elif isinstance(owner, type):
            for name, value in items.items():
                setattr(owner, name, value)
        else:
            if self.names is None:
                owner.clear()
            if isinstance(owner, (dict, set)):
                owner.update(items)
            else:
                owner.extend(items.values())

    def call(self, key: Any) -> str:
        """Return the path of an entry as a user writes it."""
        return self.path.format(key if isinstance(key, _PLAIN) else type(key).__name__)


class Snapshot:
    """The values that ``model`` can reach at the time of the snapshot."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._held: list[tuple[_Holder, Items]] = []
        self._seen: dict[int, Any] = {}  # keeps seen objects alive, so that no id is used again
        self._waiting: list[tuple[Any, str]] = [(module, f"self.{name}".rstrip(".")) for name, module in model.named_modules()]
        while self._waiting:
            value, path = self._waiting.pop()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self._visit(value, path.replace("{", "{{").replace("}", "}}"))

    def restore(self) -> None:
        """Restore all values that have changed."""
        for holder, before in self._held:
            now = holder.read()
            if list(now) != list(before) or any(now[key] is not value for key, value in before.items()):
                holder.write(before)

    def changed(self) -> set[str]:
        """Return the names of values that are new, gone or different now."""
        return {holder.call(key) for holder, before in self._held for key, *_ in _differences(before, holder.read())}

    def counted(self) -> set[str]:
        """Return the names of numbers and strings that are different now."""
        found = [(holder.call(key), *rest) for holder, before in self._held for key, *rest in _differences(before, holder.read())]
        return {name for name, old, new in found if isinstance(old, _PLAIN) and isinstance(new, _PLAIN)}

    def _hold(self, holder: _Holder) -> None:
        before = holder.read()
        self._held.append((holder, before))
        self._waiting += [(value, holder.call(key)) for key, value in before.items()]

    def _visit(self, value: Any, path: str) -> None:
        if type(value) in (*_DICTIONARIES, list, deque, set):
            self._hold(_Holder(value, path + "[{!r}]"))
        elif isinstance(value, (tuple, frozenset)):
            self._waiting += [(item, f"{path}[{i}]") for i, item in enumerate(value)]
        elif isinstance(value, MethodType):
            self._waiting += [(value.__func__, path), (value.__self__, path)]
        elif isinstance(value, functools.partial):
            self._waiting += [(value.func, path), (value.args, path), (value.keywords, path)]
        elif isinstance(value, FunctionType):
            self._visit_function(value)
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, ModuleType):
            if not _is_foreign(getattr(value, "__file__", None) or "<frozen"):
                names = frozenset(name for name in vars(value) if not name.startswith("__"))
                self._hold(_Holder(vars(value), value.__name__ + ".{}", names))
        elif isinstance(value, torch.nn.Module) or (_is_own(type(value)) and hasattr(value, "__dict__")):
            self._hold(_Holder(vars(value), path + ".{}"))
            self._waiting.append((type(value), ""))

    def _visit_function(self, function: FunctionType) -> None:
        if _is_foreign(function.__code__.co_filename):
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._hold(_Holder(cell, name))
        self._hold(_Holder(function.__globals__, "{}", frozenset(_names(function.__code__))))
        self._waiting += [(part, function.__name__) for part in (function.__defaults__, function.__kwdefaults__)]

    def _visit_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if _is_own(base):
                names = frozenset(name for name in vars(base) if not name.startswith("__"))
                self._hold(_Holder(base, f"{base.__name__}.{{}}", names))
                self._waiting += [(getattr(value, "__func__", value), "") for value in vars(base).values()]


def _differences(before: Items, now: Items) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the entries that differ: key, earlier value, current value."""
    for key in {**before, **now}:
        old, new = before.get(key, _GONE), now.get(key, _GONE)
        if old is not new and not (type(old) is type(new) and isinstance(old, _PLAIN) and old == new):
            yield key, old, new


def _contents(cell: CellType) -> Items:
    try:
        return {"": cell.cell_contents}
    except ValueError:  # the cell is not set yet
        return {}


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_own(kind: type) -> bool:
    """Whether a class is the user's own."""
    module = kind.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    return module.partition(".")[0] not in sys.stdlib_module_names and not _is_foreign(file or "")


def _is_foreign(file: str) -> bool:
    if file.startswith("<"):
        return file.startswith("<frozen")  # other names in angle brackets may be interactive input
    return not origin.is_users_own(file)

"""Shows the original's class as the ``__class__`` of its replacement, if the caller's process has that class.

``isinstance(module, Block)`` is then true as in eager, so ``apply`` and tools find the modules they
look for. A bundle never causes an import. No code of the class runs, because the replacement's type
does not derive from it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from torch import nn

_REAL: Any = vars(object)["__class__"]


def imported(name: str, base: type[nn.Module]) -> type[nn.Module] | None:
    """The subclass of ``base`` with the qualified name ``name``, if an imported module holds it.

    A class that a function made is the newest of its name.
    """
    if "<locals>" in name:
        return _made_by_function(name, base)
    steps = name.split(".")
    for i in range(len(steps) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(steps[:i]))
        for step in steps[i:]:
            found = _members(found).get(step)
        if issubclass(type(found), type) and issubclass(found, base):
            kind: type[nn.Module] = found
            return kind
    return None


def _made_by_function(name: str, base: type[nn.Module]) -> type[nn.Module] | None:
    newest, pending = None, [base]
    while pending:
        below = type.__subclasses__(pending.pop())
        pending += below
        for kind in below:
            if f"{kind.__module__}.{kind.__qualname__}" == name:
                newest = kind
    return newest


def _members(holder: Any) -> Any:
    """The own attributes of a module or class. A module's ``__getattr__`` is not called, because it may import."""
    if issubclass(type(holder), ModuleType):
        return ModuleType.__getattribute__(holder, "__dict__")
    return type.__getattribute__(holder, "__dict__") if issubclass(type(holder), type) else {}


def set_type(module: nn.Module, kind: type) -> None:
    """Change the type of ``module``, regardless of what its ``__class__`` shows."""
    _REAL.__set__(module, kind)


class OriginalClass:
    """The attribute ``__class__`` of a replacement's type.

    ``type(module)`` stays the type of the replacement. Tools may derive a class from the class they
    see here, and assign it (``torch.nn.utils.parametrize``, ``fully_shard``). The new type is then
    derived from the replacement's class.
    """

    def __init__(self, name: str, base: type[nn.Module]) -> None:
        self._name, self._base = name, base
        self._owner: type = nn.Module

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    def __get__(self, module: Any, owner: type | None = None) -> type:
        if type(module) is not self._owner:  # a tool has derived another class
            return type(module)
        found = imported(self._name, self._base)
        return self._owner if found is None or found is self._base else found

    def __set__(self, module: Any, kind: type) -> None:
        seen = self.__get__(module)
        if seen is not type(module) and issubclass(kind, seen):
            bases = tuple(self._owner if base is seen else base for base in kind.__bases__)
            body = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
            kind = self._owner if kind is seen else type(kind.__name__, bases, body)
        set_type(module, kind)

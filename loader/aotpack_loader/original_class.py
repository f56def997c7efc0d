"""The original's class as the ``__class__`` of what stands in for it, where the caller's process has imported it.

``isinstance(module, Block)`` then holds as in eager, so ``apply`` and tools find the modules that they look for. Nothing is
imported because of a bundle, and no code of the class runs: the type of a stand-in does not derive from it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from torch import nn

_REAL: Any = vars(object)["__class__"]


def imported(name: str, base: type[nn.Module]) -> type[nn.Module] | None:
    """The class of modules below ``base`` that is called ``name``, if a module that was imported holds it."""
    steps = name.split(".")
    for i in range(len(steps) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(steps[:i]))
        for step in steps[i:]:
            found = _members(found).get(step)
        if issubclass(type(found), type) and issubclass(found, base):
            kind: type[nn.Module] = found
            return kind
    return None


def _members(holder: Any) -> Any:
    """What a module or class itself holds. A module's own ``__getattr__``, which may import, is not asked."""
    if issubclass(type(holder), ModuleType):
        return ModuleType.__getattribute__(holder, "__dict__")
    return type.__getattribute__(holder, "__dict__") if issubclass(type(holder), type) else {}


def set_type(module: nn.Module, kind: type) -> None:
    """Change the type of ``module``, whatever its ``__class__`` shows."""
    _REAL.__set__(module, kind)


class OriginalClass:
    """The attribute ``__class__`` of a stand-in's type.

    ``type(module)`` stays the stand-in's. A class that a tool derives from what it sees here, and assigns
    (``torch.nn.utils.parametrize``, ``fully_shard``), is derived from the stand-in's class instead.
    """

    def __init__(self, name: str, base: type[nn.Module]) -> None:
        self._name, self._base = name, base
        self._owner: type = nn.Module

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    def __get__(self, module: Any, owner: type | None = None) -> type:
        if type(module) is not self._owner:  # a tool has put another below it
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

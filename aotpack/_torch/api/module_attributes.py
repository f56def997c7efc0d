"""Watches which attributes of modules Python code reads and writes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from .patching import hooked

_HOOK = "aot-module-attributes"


@contextlib.contextmanager
def watched_attributes(read: Callable[[nn.Module, str], Any], write: Callable[[nn.Module, str, Any], None]) -> Iterator[None]:
    """Call these functions where attributes of modules are read and written."""
    with hooked(_HOOK, nn.Module, "__getattribute__", read), hooked(_HOOK, nn.Module, "__setattr__", write):
        yield


@contextlib.contextmanager
def recorded_modes() -> Iterator[set[int]]:
    """Yield a set that receives the ids of modules whose ``training`` is read in the block.

    A data descriptor on the class takes precedence over the module's own attribute.
    """
    read: set[int] = set()

    class Training:
        def __get__(self, module: nn.Module | None, owner: type) -> Any:
            if module is None or "training" not in vars(module):
                raise AttributeError("training")
            read.add(id(module))
            return vars(module)["training"]

        def __set__(self, module: nn.Module, value: bool) -> None:
            vars(module)["training"] = value

    with hooked(_HOOK, nn.Module, "training", Training(), create=True):
        yield read

"""Watches which attributes of modules Python code reads and writes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from ... import origin
from .building import builds
from .patching import constant, hooked

_HOOK = "aot-module-attributes"


@contextlib.contextmanager
def watched_attributes(read: Callable[[nn.Module, str], Any], write: Callable[[nn.Module, str, Any], None]) -> Iterator[None]:
    """Call these functions where attributes of modules are read and written."""
    with hooked(_HOOK, nn.Module, "__getattribute__", read), hooked(_HOOK, nn.Module, "__setattr__", write):
        yield


@contextlib.contextmanager
def recorded_modes() -> Iterator[set[tuple[int, bool]]]:
    """Yield a set that receives the ids of modules whose ``training`` is read in the block, and if code of the model reads it.

    A data descriptor on the class takes precedence over the module's own attribute.
    """
    read = set[tuple[int, bool]]()

    class Training:
        def __get__(self, module: nn.Module | None, owner: type) -> Any:
            if module is None or "training" not in vars(module):
                raise AttributeError("training")
            if builds():
                read.add((id(module), origin.is_model(sys._getframe(1).f_code.co_filename)))
            return vars(module)["training"]

        def __set__(self, module: nn.Module, value: bool) -> None:
            vars(module)["training"] = value

    with constant(_HOOK, nn.Module, "training", Training()):
        yield read

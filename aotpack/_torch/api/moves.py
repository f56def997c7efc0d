"""Skips ``module.to(device)`` and similar calls in a running model if the module is there already.

Eager would assign every parameter its own data, which a graph cannot express.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .patching import hooked


@contextlib.contextmanager
def unmoved_modules() -> Iterator[None]:
    """Let the methods that move or convert a module return it unchanged if they have nothing to do."""
    with contextlib.ExitStack() as stack:
        for name, wanted in _WANTED.items():
            method = _unless_redundant(getattr(nn.Module, name), wanted)
            stack.enter_context(hooked("aot-unmoved-modules", nn.Module, name, method))
        yield


_Wanted = Callable[..., tuple[Any, ...]]
"""Maps a call's arguments to a device and a dtype; for ``to`` also to ``non_blocking`` and the
memory format.
"""


_WANTED: dict[str, _Wanted] = {
    "to": torch._C._nn._parse_to,
    "cpu": lambda: (torch.device("cpu"), None),
    "float": lambda: (None, torch.float32),
    "double": lambda: (None, torch.float64),
    "half": lambda: (None, torch.float16),
    "bfloat16": lambda: (None, torch.bfloat16),
}


def _unless_redundant(method: Callable[..., Any], wanted: _Wanted) -> Callable[..., Any]:
    def moved(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        device, dtype, *rest = wanted(*args, **kwargs)
        if (not rest or rest[1] is None) and _is_redundant(module, device, dtype):
            return module
        return method(module, *args, **kwargs)

    return moved


def _is_redundant(module: nn.Module, device: torch.device | None, dtype: torch.dtype | None) -> bool:
    for tensor in (*module.parameters(), *module.buffers()):
        if device is not None and tensor.device != device:
            return False
        if dtype is not None and (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype != dtype:
            return False
    return True

"""Wraps a plain function as a module, because the front ends trace modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class FunctionModule(torch.nn.Module):
    """A module without state that calls a plain function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    @property
    def function(self) -> Callable[..., Any]:
        """The user's function."""
        return self._function

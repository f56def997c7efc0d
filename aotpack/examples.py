"""The parameters that example inputs are passed to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


def parameters(model: torch.nn.Module | Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a call of ``model``; those of a function written in C without a signature are not known."""
    try:
        return list(inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model).parameters.values())
    except ValueError:
        return []

"""Copies of an optimizer for other parameters, and their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer


def copy_for(
    optimizer: Optimizer, kind: type[Optimizer], group: Mapping[str, Any], parameters: Sequence[torch.Tensor]
) -> Optimizer:
    """A copy of an optimizer, of class ``kind``, for other parameters in one group, without state."""
    made = object.__new__(kind)
    made.__dict__.update(optimizer.__dict__)
    made.param_groups = [{**group, "params": [*parameters]}]
    made.state = type(optimizer.state)(dict)
    return made


def step(optimizer: Optimizer) -> None:
    """Step without the profiler's event and the hooks that ``torch.optim`` adds to each class."""
    function = type(optimizer).step
    getattr(function, "__wrapped__", function)(optimizer)

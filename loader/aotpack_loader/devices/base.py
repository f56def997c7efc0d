"""What a device offers to the layers above."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from ..format import schema

Executable = Callable[[list[Any]], list[Any]]
"""A graph ready to run: takes the graph's inputs (the list is emptied), returns its outputs."""


class Device(Protocol):
    """One target of one bundle, opened."""

    @property
    def device(self) -> torch.device:
        """Where its tensors live."""

    def executable(self, key: str, graph: schema.Descriptor, arity: tuple[int, int]) -> Executable:
        """The executable called ``key`` (``train.forward``), which computes ``graph`` with ``arity`` inputs and outputs."""

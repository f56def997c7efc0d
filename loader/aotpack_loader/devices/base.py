"""What a device offers to the layers above."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from ..format import schema
from .call_library import CallLibrary

Executable = Callable[[list[Any]], list[Any]]
"""A graph ready to run: takes the graph's inputs (the list is emptied), returns its outputs."""


class Device(Protocol):
    """One target of one bundle, opened."""

    @property
    def device(self) -> torch.device:
        """Where its tensors live."""

    @property
    def call_library(self) -> tuple[CallLibrary | None, str]:
        """What makes calls in native code, or why there is nothing."""

    def executable(self, key: str, graph: schema.Descriptor, arity: tuple[int, int]) -> Executable:
        """The executable called ``key`` (``train.forward``), which computes ``graph`` with ``arity`` inputs and outputs."""


class SizedDevice(Device, Protocol):
    """A device whose code is for fixed sizes."""

    def specialized(self, name: str, code: schema.Specialization) -> Device:
        """This device with the code that the method called ``name`` has for one set of sizes."""

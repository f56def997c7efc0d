"""The interface of a device for the layers above. Only type checkers import this module: a start does not need it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self

import torch

from ..format import schema
from .base import Executable
from .call_library import CallLibrary


class Device(Protocol):
    """One target of one bundle, opened."""

    @property
    def device(self) -> torch.device:
        """The torch device of its tensors."""

    @property
    def scalars(self) -> torch.device:
        """Where updates take tensors without dimensions: where reading them waits for nothing, or where the graphs run."""

    @property
    def call_library(self) -> tuple[CallLibrary | None, str]:
        """The library that makes calls in native code, or None and the reason."""

    def executable(self, key: str, graph: schema.Descriptor, arity: tuple[int, int]) -> Executable:
        """The executable called ``key`` (``train.forward``), which computes ``graph`` with ``arity`` inputs and outputs."""

    def adapted(self, program: schema.Program) -> schema.Program:
        """The program adapted to this device. Calls follow it."""

    def moved(self, state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Parameters and buffers, moved to this device."""

    def updating_in_place(self, target: str) -> Self:
        """This device with code that updates what a model writes to in its own memory, for ``donate=True``."""

    def require_memory(self) -> None:
        """Refuse ``check="full"`` if tensors have no strides and memory to check."""


class SizedDevice(Device, Protocol):
    """A device whose code is for fixed sizes."""

    def specialized(self, name: str, code: schema.Specialization) -> Device:
        """This device with the code that the method called ``name`` has for one set of sizes."""

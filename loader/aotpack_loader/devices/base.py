"""What a device offers to the layers above."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol, Self

import torch

from .. import _heap
from ..errors import AotpackError
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

    def adapted(self, program: schema.Program) -> schema.Program:
        """The program as it is on this device, which calls follow."""

    def moved(self, state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Parameters and buffers where this device has them."""

    def updating_in_place(self, target: str) -> Self:
        """This device with code that writes to the memory of what a model writes to: for ``donate=True``."""

    def require_memory(self) -> None:
        """Refuse ``check="full"`` where tensors have no strides and memory to look at."""


class SizedDevice(Device, Protocol):
    """A device whose code is for fixed sizes."""

    def specialized(self, name: str, code: schema.Specialization) -> Device:
        """This device with the code that the method called ``name`` has for one set of sizes."""


class CpuDevice:
    """What all kinds of code that run on torch's CPU tensors have in common."""

    def adapted(self, program: schema.Program) -> schema.Program:
        """The program itself; memory is made ready for its calls."""
        _heap.warm()
        return program

    def moved(self, state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The state itself."""
        return state

    def updating_in_place(self, target: str) -> NoReturn:
        """Refused: there is nothing to choose."""
        raise AotpackError(
            f"donate=True is for XLA devices; {target} runs on the CPU, which updates in place anyway.",
            hint="Leave it out, or load with device='xla'.",
        )

    def require_memory(self) -> None:
        """Nothing is missing."""

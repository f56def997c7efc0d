"""The interface of a device for the layers above."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from .. import _heap
from ..errors import AotpackError
from ..format import schema
from .call_library import CallLibrary

Executable = Callable[[list[Any]], list[Any]]
"""A graph ready to run: takes the graph's inputs (the list is emptied), returns its outputs."""


if TYPE_CHECKING:
    from typing import Protocol, Self

    class Device(Protocol):
        """One target of one bundle, opened."""

        @property
        def device(self) -> torch.device:
            """The torch device of its tensors."""

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


class CpuDevice:
    """What all kinds of code for torch's CPU tensors have in common."""

    def adapted(self, program: schema.Program) -> schema.Program:
        """The program itself. Prepares the memory allocator for its calls."""
        _heap.warm()
        return program

    def moved(self, state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The state itself."""
        return state

    def updating_in_place(self, target: str) -> NoReturn:
        """Refuse: the CPU always updates in place."""
        raise AotpackError(
            f"donate=True is for XLA devices; {target} runs on the CPU, which updates in place anyway.",
            hint="Leave it out, or load with device='xla'.",
        )

    def require_memory(self) -> None:
        """Do nothing, because CPU tensors have strides and memory."""

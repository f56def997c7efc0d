"""What devices have in common. :mod:`.protocols` has their interface for the layers above."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from .. import _process
from ..errors import AotpackError
from ..format import schema

Executable = Callable[[list[Any]], list[Any]]
"""A graph ready to run: takes the graph's inputs (the list is emptied), returns its outputs."""


class CpuDevice:
    """What all kinds of code for tensors of torch's own devices have in common."""

    scalars = torch.device("cpu")

    def adapted(self, program: schema.Program) -> schema.Program:
        """The program itself. Prepares the memory allocator for its calls."""
        _process.keep_freed_memory()
        return program

    def moved(self, state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The state itself."""
        return state

    def updating_in_place(self, target: str) -> NoReturn:
        """Refuse: these devices always update in place."""
        raise AotpackError(
            f"donate=True is for XLA devices; {target} updates in place anyway.",
            hint="Leave it out, or load with device='xla'.",
        )

    def require_memory(self) -> None:
        """Do nothing, because these tensors have strides and memory."""

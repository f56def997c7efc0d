"""What a call and its checks know of a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import torch

    from ..format import schema


class LoadedMethod(Struct, frozen=True):
    """One method of a program, and what its calls share with those of other methods.

    Args:
        name: the method's name, for messages.
        method: its description.
        constants: tensors the graphs close over, by stored name.
        entries: the program's state by name.
        device: where the executables run.
        classes: the tensor subclasses that the program needs, by name.
    """

    name: str
    method: schema.Method
    constants: Mapping[str, torch.Tensor]
    entries: Mapping[str, schema.StateEntry]
    device: torch.device
    classes: Mapping[str, type[torch.Tensor]]

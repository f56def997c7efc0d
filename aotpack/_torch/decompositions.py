"""What is decomposed for every target: operators that no bundle may call. What torch has wrong is among its fixes.

A loader refuses operators that hand out memory they have not filled (spec/security.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import stored_elements


def _resize(tensor: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """The storage read anew, row by row, as a tensor of ``size``; zeros where it is too short and eager leaves what was there."""
    count, held = math.prod(size), stored_elements(tensor) - tensor.storage_offset()
    elements = tensor.as_strided((min(count, held),), (1,))
    if count > held:
        elements = torch.cat([elements, elements.new_zeros(count - held)])
    return elements.reshape(size).clone(memory_format=memory_format or torch.contiguous_format)


def _resize_as(tensor: torch.Tensor, other: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """:func:`_resize` to the size of ``other``."""
    return _resize(tensor, other.shape, memory_format=memory_format)


TABLE: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.resize.default: _resize,
    torch.ops.aten.resize_as.default: _resize_as,
}

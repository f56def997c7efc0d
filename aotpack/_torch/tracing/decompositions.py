"""Decompositions for every target, of operators that a bundle must not call.

A loader rejects operators that return uninitialized memory (spec/security.md). Decompositions that
correct torch are among the fixes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..api.fake_tensors import stored_elements


def _resize(tensor: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """Read the storage as a contiguous tensor of ``size``, padded with zeros where eager would
    leave memory unset.
    """
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

"""Traces ``as_strided`` of a view as a view of the tensor that owns the memory.

Functionalization repeats a chain of views to write to it, and refuses ``as_strided`` after the first
of them: it would repeat it on a copy, whose memory is another. A view of the owner is a chain of
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode

from aotpack_loader.runtime.memory import extent

from ...api.counting import count_call
from ...api.fake_tensors import is_fixed
from .overlaps import AS_STRIDED, has_strides, is_dense, strided_arguments

_creation: Callable[[torch.Tensor], Any] = torch._C._autograd._get_creation_meta
_Creation = torch._C._autograd.CreationMeta


class StridedViewMode(TorchFunctionMode):
    """While active, takes such views from the owner of the memory.

    A gradient could differ: eager drops what belongs to elements outside of the viewed view. Such a
    call stays as it is.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in AS_STRIDED:
            tensor, size, stride, offset = strided_arguments(args, kwargs or {})
            owner = _owner(tensor)
            start = tensor.storage_offset() if offset is None else offset
            if owner is not None and (not tensor.requires_grad or _is_within(tensor, size, stride, start)):
                count_call("aot-strided-views-of-views")
                return owner.as_strided(size, stride, start)
        return function(*args, **kwargs or {})


def _owner(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that owns the memory of a traced view, if it is laid out in the trace as in eager.

    None for a view to which eager refuses to write, such as one of the results of ``unbind``.
    """
    owner = tensor._base
    if not isinstance(tensor, FunctionalTensor) or not isinstance(owner, FunctionalTensor):
        return None
    if torch.is_grad_enabled() and _creation(tensor) != _Creation.DEFAULT:
        return None
    is_same = owner.dtype == tensor.dtype and has_strides(owner, torch._from_functional_tensor(owner.elem).stride())
    return owner if is_same else None


def _is_within(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | torch.SymInt) -> bool:
    """Whether all elements of a view by strides are known to be elements of ``tensor``.

    False for a large view of a tensor with gaps, whose positions are too many to compare.
    """
    start = tensor.storage_offset()
    if not is_fixed(*tensor.shape, *tensor.stride(), *size, *stride, start, offset):
        return False
    end, last = start + extent(tensor.shape, tensor.stride()), offset + extent(tuple(size), tuple(stride))
    if offset < start or last > end:
        return False
    if is_dense(tensor):
        return True
    known = _positions(tensor.shape, tensor.stride(), int(start)) if tensor.numel() <= _MOST else frozenset()
    return math.prod(size) <= _MOST and _positions(size, stride, int(offset)) <= known


_MOST = 1 << 16
"""How many positions in memory are compared."""


def _positions(size: Sequence[int], stride: Sequence[int], offset: int) -> frozenset[int]:
    """The positions of all elements in memory. Tensors would be traced."""
    found = {int(offset)}
    for count, step in zip(size, stride, strict=True):
        found = {position + int(step) * i for position in found for i in range(int(count))}
    return frozenset(found)

"""``as_strided`` with elements that overlap, where sizes vary: torch's own backward asks for the numbers of all of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch.fx.experimental.symbolic_shapes import statically_known_true

_AS_STRIDED = torch.ops.aten.as_strided.default


@contextlib.contextmanager
def overlaps_of_any_size() -> Iterator[None]:
    """Meanwhile, gradients of ``as_strided`` are traced without fixing sizes, where strides alone tell that elements overlap."""
    _AS_STRIDED.py_impl(DispatchKey.Autograd)(_as_strided)
    try:
        yield
    finally:
        del _AS_STRIDED.py_kernels[DispatchKey.Autograd]
        _AS_STRIDED._dispatch_cache.clear()


def _as_strided(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Any:
    if torch.is_grad_enabled() and tensor.requires_grad and _overlaps(size, stride) and _holds(tensor, size, stride, offset):
        return _Overlapping.apply(tensor, size, stride)  # type: ignore[no-untyped-call]
    keys = torch._C._dispatch_keys(tensor)
    key = next(key for key in (DispatchKey.AutogradCUDA, DispatchKey.AutogradCPU, DispatchKey.AutogradMeta) if keys.has(key))
    return _AS_STRIDED._op_dk(key, tensor, size, stride, offset)


def _overlaps(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements are at one place, as far as it does not depend on what varies."""
    reach = 1
    for stride, size in sorted(zip(strides, sizes, strict=True), key=lambda item: item[0]) if _fixed(*strides) else ():
        if stride < reach:
            return True
        if not _fixed(size):
            return False
        reach += (size - 1) * stride
    return False


def _holds(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None) -> bool:
    """Whether ``tensor`` is contiguous and a view from its begin on stays within it."""
    expected = 1
    for length, step in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not _fixed(step, expected) or step != expected:
            return False
        expected *= length
    reach = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    return offset in (None, tensor.storage_offset()) and statically_known_true(reach <= tensor.numel())


def _fixed(*values: int) -> bool:
    return all(isinstance(value, int) for value in values)


class _Overlapping(torch.autograd.Function):
    """The view itself; gradients of one place are added up by index, as eager's backward does."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        ctx.shape, ctx.view = tensor.shape, (size, stride)
        with torch._C._AutoDispatchBelowAutograd():
            result: torch.Tensor = _AS_STRIDED(tensor, size, stride)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        places = torch.zeros((), dtype=torch.int64, device=gradient.device)
        for size, stride in zip(*ctx.view, strict=True):
            places = places.unsqueeze(-1) + torch.arange(size, device=gradient.device) * stride
        elements = gradient.new_zeros(math.prod(ctx.shape)).index_add(0, places.flatten(), gradient.flatten())
        return elements.view(ctx.shape), None, None

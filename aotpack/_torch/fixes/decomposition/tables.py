"""Decompositions, for every target, of operators that compiled code or tracing computes wrongly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ...api.fake_tensors import stored_elements
from ...api.moments import moments
from ...api.torch_types import HALVES

Table = dict[Any, Callable[..., Any]]


def as_strided_scatter() -> Table:
    return {torch.ops.aten.as_strided_scatter.default: _as_strided_scatter}


def allocate_zeros() -> Table:
    return {torch.ops.aten._efficientzerotensor.default: _zeros}


def take() -> Table:
    return {torch.ops.aten.take.default: _take}


def ldexp() -> Table:
    return {torch.ops.aten.ldexp.Tensor: _ldexp}


def decompose_foreach_with_scalars() -> Table:
    return {getattr(torch.ops.aten, f"_foreach_{name}").ScalarList: _each(operator) for name, operator in _EACH.items()}


def trace_fractional_pool_gradient() -> Table:
    return {torch.ops.aten.fractional_max_pool3d_backward.default: _fractional_max_pool3d_backward}


def keep_unsafe_splits_separate() -> Table:
    return {
        torch.ops.aten.unsafe_split.Tensor: _unsafe(torch.ops.aten.split),
        torch.ops.aten.unsafe_split_with_sizes.default: _unsafe(torch.ops.aten.split_with_sizes),
    }


def std() -> Table:
    return {torch.ops.aten.std.correction: _std, torch.ops.aten.std_mean.correction: _std_mean}


def threshold_backward() -> Table:
    return {torch.ops.aten.threshold_backward.default: _threshold_backward}


def _std(
    x: torch.Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> torch.Tensor:
    """The root of the variance in ``float64``, as in eager's kernel. The variance itself may be out of range."""
    if x.is_complex():
        return torch.var(x, dim, correction=correction, keepdim=keepdim).sqrt()
    if x.dtype in HALVES:
        return moments(x, dim, correction, keepdim)[0].sqrt().to(x.dtype)
    return torch.var(x.double(), dim, correction=correction, keepdim=keepdim).sqrt().to(x.dtype)


def _std_mean(
    x: torch.Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`_std`, and the mean."""
    if x.is_complex():
        variance, mean = torch.var_mean(x, dim, correction=correction, keepdim=keepdim)
        return variance.sqrt(), mean
    variance, mean = moments(x, dim, correction, keepdim)
    return variance.sqrt().to(x.dtype), mean.to(x.dtype)


def _threshold_backward(gradient: torch.Tensor, x: torch.Tensor, threshold: float) -> torch.Tensor:
    """Compare half precision with a threshold in ``float32``, as eager's kernel does. The threshold may not be exact in it."""
    wider = threshold != 0 and x.dtype in HALVES
    return torch.where((x.float() if wider else x) <= threshold, 0, gradient)


def _ldexp(x: torch.Tensor, exponent: torch.Tensor) -> Any:
    """Multiply by a power of two, in the type of both. Inductor keeps the type of ``x``.

    A real number by a whole exponent is another kernel, which Inductor has, too.
    """
    if x.is_floating_point() and not exponent.is_floating_point() and exponent.dtype != torch.bool:
        return NotImplemented
    return x * torch.pow(2.0, exponent)


def _as_strided_scatter(
    tensor: torch.Tensor, source: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    """Rebuild the whole storage around the tensor, and compute addresses in it, as eager does.

    Inductor (torch 2.13) computes addresses in a contiguous copy of the tensor, so
    ``torch.compile`` writes to other elements. An expanded tensor is copied first, as in eager.
    """
    if any(statically_known_true(step == 0) and count != 1 for count, step in zip(tensor.shape, tensor.stride(), strict=True)):
        return torch.as_strided_scatter(tensor.clone(), source, size, stride, storage_offset)
    held = stored_elements(tensor)
    if tensor.is_contiguous() and statically_known_true(tensor.numel() == held):
        return NotImplemented
    whole = tensor.new_zeros(held).as_strided_scatter(tensor, tensor.shape, tensor.stride(), tensor.storage_offset())
    offset = tensor.storage_offset() if storage_offset is None else storage_offset
    whole = whole.as_strided_scatter(source, size, stride, offset)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _zeros(size: Sequence[int], **options: Any) -> torch.Tensor:
    """Zeros with memory.

    The gradient of ``sgn`` has none, and AOTInductor (torch 2.13) returns it on another device.
    """
    return torch.zeros(size, **options)


def _take(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """``take`` that also supports a 0-dimensional index, which torch's own decomposition reads as a
    number.
    """
    return torch.ops.aten.index.Tensor(tensor.reshape(-1), [indices])  # type: ignore[no-any-return]


def _each(operator: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Apply a ``_foreach_`` operator item by item: compiled code (torch 2.13) raises when it passes
    a list of numbers.
    """
    return lambda *lists: [operator(*items) for items in zip(*lists, strict=True)]


def _unsafe(split: Callable[..., Sequence[torch.Tensor]]) -> Callable[..., list[torch.Tensor]]:
    """Parts in the tensor's memory that autograd does not know as views; a part that is the whole
    is still another tensor.
    """
    return lambda *given: [part.view(part.shape) for part in split(*given)]


def _fractional_max_pool3d_backward(
    gradient: torch.Tensor, x: torch.Tensor, kernel: Sequence[int], size: Sequence[int], indices: torch.Tensor
) -> torch.Tensor:
    """Add the gradient at the index of each window's maximum; torch has no fake kernel for the
    operator.
    """
    flat = torch.zeros_like(x, memory_format=torch.contiguous_format).flatten(-3)
    return flat.scatter_add(-1, indices.flatten(-3), gradient.flatten(-3)).view(x.shape)


_EACH: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "pow", "clamp_min", "clamp_max", "lerp")},
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "addcmul": lambda tensor, one, other, value: torch.addcmul(tensor, one, other, value=value),
    "addcdiv": lambda tensor, one, other, value: torch.addcdiv(tensor, one, other, value=value),
}

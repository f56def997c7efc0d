"""Implements average pools for XLA. torch_xla has no adaptive ones, and computes other averages for
partial windows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten


AVERAGES = {
    2: (aten.avg_pool2d.default, aten.avg_pool2d_backward.default),
    3: (aten.avg_pool3d.default, aten.avg_pool3d_backward.default),
}
"""Average pools and their gradients, by the number of dimensions of a window."""


MAXIMA = {
    aten.max_pool2d_with_indices_backward.default: 2,
    aten.max_pool3d_with_indices_backward.default: 3,
}
"""Gradients of pools of maxima, and the number of dimensions of a window. torch reads only the indices, torch_xla the image."""


def maxima_backward(rank: int, gradient: torch.Tensor, image: torch.Tensor, *window: Any) -> torch.Tensor:
    """One of :data:`MAXIMA`, from the indices (the last argument), which number the elements of a channel.

    Of ``image`` it reads only the size.
    """
    found = gradient.new_zeros([*image.shape[:-rank], math.prod(image.shape[-rank:])])
    return found.scatter_add(-1, window[-1].flatten(-rank), gradient.flatten(-rank)).view(image.shape)


def adaptive_average(x: torch.Tensor, output_size: list[int]) -> torch.Tensor:
    """Adaptive average pooling, one dimension after another: the sizes are known."""
    for dim, size in zip((-2, -1), output_size, strict=True):
        ends = [(i * x.shape[dim] // size, -(-(i + 1) * x.shape[dim] // size)) for i in range(size)]
        x = torch.stack([x.narrow(dim, start, end - start).mean(dim) for start, end in ends], dim)
    return x


def adaptive_average_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for dim in (-2, -1):
        gradient = _spread(gradient, dim, x.shape[dim])
    return gradient


def _spread(gradient: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """The gradient of averages along ``dim``: an element gets a share of each window that contains
    it, from first to last.
    """
    count, tail = gradient.shape[dim], [1] * (-dim - 1)
    window, index = (torch.arange(n, device=gradient.device) for n in (count, size))
    lengths = ((window + 1) * size + count - 1) // count - window * size // count
    first, last = index * count // size, ((index + 1) * count + size - 1) // size - 1
    shares = gradient / lengths.view(-1, *tail)
    most = max(-(-(i + 1) * count // size) - i * count // size for i in range(size))
    parts = [shares.index_select(dim, torch.minimum(first + i, last)) for i in range(most)]
    inside = [torch.where((first + i <= last).view(-1, *tail), part, 0) for i, part in enumerate(parts)]
    return functools.reduce(torch.add, inside)


def average(
    rank: int,
    x: torch.Tensor,
    kernel_size: list[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Average pooling with ``ceil_mode``, whose windows may exceed the input; without it,
    ``NotImplemented``.
    """
    if not ceil_mode:
        return NotImplemented
    kernel, step, pads, factor = _windows(rank, x, kernel_size, stride, padding, count_include_pad, divisor_override)
    means = AVERAGES[rank][0](torch.constant_pad_nd(x.to(factor.dtype), pads), kernel, step)
    return (means * factor).to(x.dtype)


def average_backward(
    rank: int,
    gradient: torch.Tensor,
    x: torch.Tensor,
    kernel_size: list[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    if not ceil_mode:
        return NotImplemented
    kernel, step, pads, factor = _windows(rank, x, kernel_size, stride, padding, count_include_pad, divisor_override)
    padded = torch.constant_pad_nd(torch.zeros_like(x, dtype=factor.dtype), pads)
    found = AVERAGES[rank][1](gradient.to(factor.dtype) * factor, padded, kernel, step, [0] * rank, False, True, None)
    return torch.constant_pad_nd(found, [-pad for pad in pads]).to(x.dtype)


def _windows(
    rank: int,
    x: torch.Tensor,
    kernel_size: list[int],
    stride: Sequence[int],
    padding: Sequence[int],
    count_include_pad: bool,
    divisor_override: int | None,
) -> tuple[list[int], list[int], list[int], torch.Tensor]:
    """Sizes and strides of a pool's windows, the padding that makes all of them whole, and the
    factor for their means then.

    As in torch with ``ceil_mode``, every window begins before the end of the input or of its
    padding on the left.
    """
    kernel, step, pad = (list(sizes) * (rank // len(sizes)) for sizes in (kernel_size, stride or kernel_size, padding))
    pads: list[int] = []
    counts = torch.ones((), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    for side, (length, k, s, p) in enumerate(zip(x.shape[-rank:], kernel, step, pad, strict=True)):
        many = -(-(length + 2 * p - k) // s) + 1
        many -= (many - 1) * s >= length + p
        pads = [p, (many - 1) * s + k - length - p, *pads]  # the last side comes first
        first = torch.arange(many, device=x.device) * s - p
        last = (first + k).clamp(max=length + p if count_include_pad else length)
        first = first if count_include_pad else first.clamp(min=0)
        counts = counts * (last - first).view(-1, *[1] * (rank - 1 - side))
    return (
        kernel,
        step,
        pads,
        math.prod(kernel) / (counts if divisor_override is None else torch.full_like(counts, divisor_override)),
    )

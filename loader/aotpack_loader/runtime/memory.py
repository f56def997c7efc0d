"""Address ranges of tensors, and whether two tensors share a byte.

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from .._torch_compat import is_one_storage

_MAX_EXAMINED = 4096
"""Steps of a search after which two tensors count as overlapping: only strides that no view operation makes take more."""


def is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether a tensor is on a device. The CPU has no index."""
    return tensor.is_cpu if device.type == "cpu" else tensor.device == device


def has_address(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory and strides. Those of XLA devices have none."""
    return tensor.device.type != "xla"


class ByteRange(NamedTuple):
    """The bytes of a tensor's elements: start, sizes, strides in elements, and bytes of an element."""

    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    width: int

    def meet(self, other: ByteRange) -> bool:
        """Whether the elements of both share a byte. Different columns of one matrix share none."""
        if 0 in self.shape or 0 in other.shape:
            return False
        ranges: dict[int, tuple[int, int]] = {}
        for byte_range, sign in ((self, 1), (other, -1)):
            for size, step in zip(byte_range.shape, byte_range.stride, strict=True):
                if size > 1 and step:
                    first, last = ranges.get(step * byte_range.width, (0, 0))
                    reach = sign * (size - 1)
                    ranges[step * byte_range.width] = (first + min(reach, 0), last + max(reach, 0))
        # Do two elements exist whose addresses differ by less than the size of an element?
        distance = other.start - self.start
        steps = [(step, *ranges[step]) for step in sorted(ranges, reverse=True)]
        return _reaches(steps, distance - self.width + 1, distance + other.width - 1)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """First address of a tensor and the address after its last byte; equal for a tensor without elements."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    return start, start + extent(tensor.shape, tensor.stride()) * tensor.element_size()


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements lie next to each other, in some order of the dimensions. A tensor without elements may be neither."""
    expected = 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size > 1 and step != expected:
            return False
        expected *= size
    return True


def extent(shape: tuple[int, ...] | list[int], stride: tuple[int, ...] | list[int]) -> int:
    """Number of elements from the first to the last, inclusive, of a tensor that is not empty."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors inside ``tensor``; a plain tensor yields itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from plain_tensors(getattr(tensor, name))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor as a one-dimensional ``uint8`` view."""
    row = tensor.as_strided((tensor.numel(),), (1,))  # flattening a single element would keep its stride
    return row.view(torch.uint8)


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether ``a`` and ``b`` share a byte. Columns of one matrix share none, though their address ranges overlap.

    Tensors of an XLA device have no addresses. They overlap if they are views of one storage.
    """
    if not has_address(a):
        return is_one_storage(a, b)
    start, stop = span(a)
    low, high = span(b)
    if not (low < stop and start < high):
        return False
    if a.is_contiguous() and b.is_contiguous():
        return True
    return _byte_range(a).meet(_byte_range(b))


def _byte_range(tensor: torch.Tensor) -> ByteRange:
    return ByteRange(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.element_size())


def _reaches(steps: list[tuple[int, int, int]], low: int, high: int) -> bool:
    """Whether some sum of multiples of the steps, each within its bounds, is in ``low..high``; steps descend."""
    tails = [steps[i:] for i in range(len(steps) + 1)]
    rest = [(sum(s * first for s, first, _ in tail), sum(s * last for s, _, last in tail)) for tail in tails]
    pending, examined = [(0, low, high)], 0
    while pending:
        i, low, high = pending.pop()
        examined += 1
        if examined > _MAX_EXAMINED:
            return True
        if i == len(steps):
            return True  # only partial sums that can still reach the range are followed
        step, first, last = steps[i]
        least, most = rest[i + 1]
        nearest, farthest = max(first, -((most - low) // step)), min(last, (high - least) // step)
        pending += [(i + 1, low - count * step, high - count * step) for count in range(nearest, farthest + 1)]
    return False

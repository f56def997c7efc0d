"""Memory layouts of what Inductor's code reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import ir, virtualized

from .fixes.inductor.results import buffer_of


@dataclass(frozen=True)
class OutputLayout:
    """How compiled code writes an output.

    Args:
        order: the output's dimensions from outermost to innermost in memory. Empty if the strides
            are the graph's; null if they are not, and the output is not dense either.
        own: whether the output is dense, in memory that the code allocated and no input or other
            output shares.
    """

    order: list[int] | None
    own: bool


def with_stride_order(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A dense fake tensor like ``value``, with its dimensions in memory in ``order``, outermost
    first.
    """
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_permuted(value.shape, list(order), dtype=value.dtype, device=value.device)


def output_layouts(results: Sequence[Any], expected: Sequence[torch.Tensor]) -> list[OutputLayout]:
    """How the code that Inductor is about to write lays out ``results``; ``expected`` are the
    graph's.
    """
    buffers = [None if _dense_order(value) is None else _own_buffer(value) for value in results]
    own = [buffer is not None and buffers.count(buffer) == 1 for buffer in buffers]
    return [OutputLayout(_dimension_order(*pair), alone) for *pair, alone in zip(results, expected, own, strict=True)]


def _dimension_order(value: Any, expected: torch.Tensor) -> list[int] | None:
    """Inductor's layout of an output, as :class:`OutputLayout` describes it."""
    known = virtualized.V.graph.sizevars
    sizes, strides = value.get_size(), value.get_layout().stride
    wide = [dim for dim, size in enumerate(sizes) if not known.statically_known_equals(size, 1)]
    own: list[Any] = [getattr(getattr(step, "node", None), "expr", step) for step in expected.stride()]
    if all(known.statically_known_equals(strides[dim], own[dim]) for dim in wide):
        return []
    return _dense_order(value)


def _dense_order(value: Any) -> list[int] | None:
    """An output's dimensions from outermost to innermost in memory; null if its strides leave gaps
    or overlap.
    """
    known = virtualized.V.graph.sizevars
    sizes, strides = value.get_size(), value.get_layout().stride
    order = sorted(range(len(sizes)), key=lambda dim: (-known.optimization_hint(strides[dim]), dim))
    step: Any = 1
    for dim in reversed(order):
        wide = not known.statically_known_equals(sizes[dim], 1)
        if wide and not known.statically_known_equals(strides[dim], step):
            return None
        step = step * sizes[dim]
    return order


def _own_buffer(value: Any) -> str | None:
    """Name of the buffer that holds a graph's output, possibly shared with other outputs; null if
    the graph did not make it.
    """
    buffer = buffer_of(value)
    if not isinstance(buffer, ir.Buffer) or isinstance(buffer, ir.InputBuffer):
        return None
    others = [*buffer.get_inputs_that_alias_output(), *buffer.get_mutation_names()]
    return None if others else buffer.get_name()


def as_in_eager(value: Any, strides: Sequence[Any]) -> Any:
    """Give a tensor eager's strides, so that views of it stay views.

    For a view's base Inductor keeps only the stride order.
    """
    return ir.ExternKernel.require_exact_strides(value, strides) if isinstance(value, ir.TensorBox) and strides else value


def channels_last(value: Any) -> Any:
    """A convolution's input with channels-last strides, if they match its memory: with one channel
    or one pixel.

    By its own strides the input would be contiguous. The convolution would return a contiguous
    output, and a copy would follow. ``torch.compile`` avoids this if the input is saved for the
    backward, because its graph returns the input.
    """
    if not isinstance(value, ir.TensorBox) or len(value.get_size()) != 4:
        return value
    strides = ir.FlexibleLayout.stride_ordered_for_memory_format(value.get_size(), torch.channels_last)
    return ir.try_match_insignificant_strides(value, strides)

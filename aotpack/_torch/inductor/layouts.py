"""Memory layouts of what Inductor's code reads and writes."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, Final, cast

import torch
from torch._inductor import ir, lowering, virtualized
from torch.fx import Node

from ..api.fake_tensors import hint_of
from ..api.nodes import value_of, without_views
from ..api.patching import with_items
from ..fixes.inductor.results import buffer_of

_CONVOLUTION: Final = torch.ops.aten.convolution.default
_CONVOLUTION_BACKWARD: Final = torch.ops.aten.convolution_backward.default
_PRODUCTS: Final = {_CONVOLUTION, *(getattr(torch.ops.aten, name).default for name in ("addmm", "baddbmm", "bmm", "mm"))}
_REDUCTIONS: Final = {
    torch.ops.aten.amax.default,
    torch.ops.aten.amin.default,
    torch.ops.aten.mean.dim,
    torch.ops.aten.sum.dim_IntList,
    torch.ops.aten.var_mean.correction,
}
_LANES: Final = 16
"""Numbers in a vector of the widest instruction set."""
_LOOPS: Final = 4
"""Loops over what follows a convolution, in the forward and the backward: two each for a norm or a softmax."""


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


def likely_layouts(graph: torch.fx.Graph) -> list[OutputLayout]:
    """The layouts that code of Inductor for ``graph`` is likely to give its outputs, without lowering it."""
    outputs = list(graph.output_node().args[0])  # type: ignore[arg-type]
    bases = [_base(value) if isinstance(value, Node) and _is_dense(value.meta["val"]) else None for value in outputs]
    return [OutputLayout([], base is not None and base.op != "placeholder" and bases.count(base) == 1) for base in bases]


def _is_dense(value: Any) -> bool:
    """Whether a tensor's elements are next to each other in memory, at the sizes of the example."""
    if not isinstance(value, torch.Tensor):
        return False
    sizes, strides = ([hint_of(each) for each in found] for found in (value.shape, value.stride()))
    return 0 in sizes or prod(sizes) == 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def _base(node: Node) -> Node:
    """The node that ``node`` is a view of, also as one of several results (``split``)."""
    start = without_views(node)
    if start.target is operator.getitem and getattr(start.all_input_nodes[0].target, "is_view", False):
        return _base(start.all_input_nodes[0])
    return start


def has_convolutions(graph: torch.fx.Graph) -> bool:
    """Whether the code of a graph may choose layouts for convolutions."""
    return bool(graph.find_nodes(op="call_function", target=_CONVOLUTION))


def _dimension_order(value: Any, expected: torch.Tensor) -> list[int] | None:
    """Inductor's layout of an output, as :class:`OutputLayout` describes it."""
    known = virtualized.V.graph.sizevars
    sizes, strides = value.get_size(), value.get_layout().stride
    wide = [dim for dim, size in enumerate(sizes) if not known.statically_known_equals(size, 1)]
    own = [_expression(step) for step in expected.stride()]
    if all(known.statically_known_equals(strides[dim], own[dim]) for dim in wide):
        return []
    return _dense_order(value)


def _expression(size: Any) -> Any:
    """A size or stride of a fake tensor as Inductor has it: an integer, or an expression of symbols."""
    return getattr(getattr(size, "node", None), "expr", size)


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


def contiguous_convolutions(nodes: Iterable[Node], hint: Callable[[Any], int]) -> list[Node]:
    """The convolutions of a graph that keep the graph's layout: those after the point from which on
    that is faster. ``hint`` gives a number for a symbolic size.

    Inductor makes all convolutions of a processor channels-last. Then torch converts each weight to
    channels-last, and its gradient too, element by element. Otherwise oneDNN reorders the input and
    the output, which takes half as long for an element. So the weights count against the inputs and
    outputs. A kernel of one element has the same memory in both layouts.

    Where some dimensions of an output are reduced, loops over channels-last images have vectors of channels. A few
    channels, or one more than a vector has, leave lanes idle, in each loop of the forward and the backward.
    """

    def gain(convolution: Node) -> int:
        image, weight = (part.meta["val"] for part in cast("tuple[Node, Node]", convolution.args[:2]))
        converted = _elements(weight, hint) if any(side != 1 for side in weight.shape[2:]) else 0
        output = convolution.meta["val"]
        channels = hint(_expression(output.shape[1]))
        idle = -channels % _LANES * (_elements(output, hint) // max(channels, 1)) if _is_reduced(convolution) else 0
        return 2 * converted + _LOOPS * idle - _elements(image, hint) - _elements(output, hint)

    found = [node for node in nodes if node.target is _CONVOLUTION and node.meta["val"].dim() == 4]
    gains = list(accumulate(map(gain, reversed(found))))  # of the last convolution, of the last two, ...
    best = max(gains, default=0)
    return found[-1 - gains.index(best) :] if best > 0 else []


def _elements(tensor: torch.Tensor, hint: Callable[[Any], int]) -> int:
    return prod(hint(_expression(size)) for size in tensor.shape)


def with_converted_outputs(contiguous: Sequence[Node], nodes: Iterable[Node], hint: Callable[[Any], int]) -> list[Node]:
    """Those of the contiguous convolutions that may be channels-last, if their outputs are converted instead.

    That is the first one, if another convolution comes before it, its image has more elements than its output, and its
    weight is the same in both layouts.
    """
    if not contiguous or next((node for node in nodes if node.target is _CONVOLUTION), None) is contiguous[0]:
        return []
    first = contiguous[0]
    image, weight = (part.meta["val"] for part in cast("tuple[Node, Node]", first.args[:2]))
    is_smaller = _elements(first.meta["val"], hint) < _elements(image, hint)
    return [first] if is_smaller and all(side == 1 for side in weight.shape[2:]) else []


def _is_reduced(convolution: Node) -> bool:
    """Whether some dimensions of what follows a convolution, before the next product or convolution, are reduced."""
    following, seen = [convolution], {convolution}
    while following:
        node = following.pop()
        if node.target in _REDUCTIONS and 0 < len(_dims(node)) < value_of(node.args[0]).dim():
            return True
        fresh = [user for user in node.users if user not in seen and user.target not in _PRODUCTS and user.op == "call_function"]
        seen.update(fresh)
        following += fresh
    return False


def _dims(reduction: Node) -> Sequence[int]:
    """The dimensions that are reduced; none for all."""
    _, dims, *_ = cast("Any", (*reduction.args, None))
    return dims or ()


def nodes_for_channels_last(nodes: Iterable[Node], contiguous: Collection[Node]) -> set[Node]:
    """The nodes whose results should be channels-last, if the convolutions ``contiguous`` should not.

    They are the other convolutions, what leads to them, and what follows from these before the
    last one, as in Inductor's ``GraphLowering.find_nodes_prefer_channels_last``.
    """
    able = {node: None for node in nodes if node.target is not torch.ops.aten.bmm.default and node not in contiguous}
    convolutions = [node for node in able if node.target is _CONVOLUTION]
    if not convolutions:
        return set()
    found = set(convolutions)
    for node in reversed(able):
        if not found.isdisjoint(node.users):
            found.add(node)
    for node in able:
        if node is convolutions[-1]:
            break
        if node in found:
            found.update(user for user in node.users if user in able)
    return found


@contextlib.contextmanager
def convolution_gradients_in_layout() -> Iterator[None]:
    """Give gradients of convolutions their arguments in the layout that the kernel reads.

    Inductor lays them out in the order of the strides of the weight's gradient. In a depthwise
    convolution, strides of channels and of columns are equal: the arguments are copied to an order
    that the kernel does not read, and the kernel copies them again. Ordering also fixes sizes.
    """
    call = lowering.fallback_handler(_CONVOLUTION_BACKWARD, add_to_fallback_set=False)

    def differentiated(gradient: Any, x: Any, weight: Any, *rest: Any) -> Any:
        order = _gradient_order(virtualized.V.graph.current_node)
        if order is not None:
            gradient, x = (ir.ExternKernel.require_stride_order(each, order) for each in (gradient, x))
        return call(gradient, x, weight, *rest)

    with with_items("inductor-convolution-gradients", lowering, "lowerings", {_CONVOLUTION_BACKWARD: differentiated}):
        yield


def _gradient_order(node: Node) -> list[int] | None:
    """The order of strides, as Inductor has it, in which the kernel of ``convolution_backward`` reads
    the gradient and the input; null if it computes neither's gradient.
    """
    image = cast("Node", node.args[1]).meta["val"]
    of_image, of_weight, _ = node.meta["val"]
    like = of_image if of_weight is None else of_weight
    if like is None:
        return None
    sizes, steps = ([hint_of(each) for each in found] for found in (image.shape, image.stride()))
    ties = [0 if size == 1 else step for size, step in zip(sizes, steps, strict=True)]
    if sizes[0] == 1:
        ties[0] = prod(sizes)  # a batch of one stays the outermost dimension
    strides = [(hint_of(step), tie) for step, tie in zip(like.stride(), ties, strict=True)]
    return list(ir.get_stride_order(cast("Any", strides)))

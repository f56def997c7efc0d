"""Gradients of pooling that do not keep the image that was pooled.

Their operators take the image, but read only its size and memory format. So a build passes zeros of the
same size. Then the image is not saved for the backward: of a ReLU before ``max_pool2d``, a mask of bytes
is saved instead, as for ``torch.compile``. Compiled code does not make the zeros either. It passes memory
that it has anyway, with the image's sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch._inductor import ir, lowering, virtualized
from torch._prims_common import suggest_memory_format

from ..api.nodes import value_of

_aten = torch.ops.aten
POOLS: Final = (
    _aten._adaptive_avg_pool2d_backward.default,
    _aten._adaptive_avg_pool3d_backward.default,
    _aten.adaptive_max_pool2d_backward.default,
    _aten.adaptive_max_pool3d_backward.default,
    _aten.avg_pool2d_backward.default,
    _aten.avg_pool3d_backward.default,
    _aten.max_pool2d_with_indices_backward.default,
    _aten.max_pool3d_with_indices_backward.default,
)
"""Operators whose second argument is the image."""
_LAST: Final = (torch.channels_last, torch.channels_last_3d)


def without_images() -> Mapping[Any, Callable[..., Any]]:
    """Decompositions of gradients of pooling: the same operators, on zeros in place of the image."""
    return {operator: _on_zeros(operator) for operator in POOLS}


def _on_zeros(operator: Any) -> Callable[..., Any]:
    tracing = False

    def rule(gradient: torch.Tensor, image: torch.Tensor, *rest: Any) -> Any:
        nonlocal tracing
        if tracing:  # the operator is called below
            return NotImplemented
        tracing = True
        try:
            return operator(gradient, _zeros(gradient, image), *rest)
        finally:
            tracing = False

    return rule


def _zeros(gradient: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """Zeros of the size and in the memory format of ``image``."""
    if suggest_memory_format(image) not in _LAST:
        return gradient.new_zeros(image.shape)
    batch, channels, *sides = image.shape
    return gradient.new_zeros([batch, *sides, channels]).movedim(-1, 1)


def call_without_image(operator: Any) -> Callable[..., Any]:
    """A lowering of one of :data:`POOLS`: a call that passes the gradient's memory as the image."""
    call: Callable[..., Any] = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lowered(gradient: Any, image: Any, *rest: Any) -> Any:
        node = virtualized.V.graph.current_node
        (gradient, _, *rest), _ = lowering.constrain_to_fx_strides(node, gradient, image, *rest)
        last = suggest_memory_format(value_of(node.args[1])) in _LAST
        return call(gradient, memory_as(gradient, image.get_size(), channels_last=last), *rest)

    return lowered


def memory_as(given: Any, size: Sequence[Any], *, channels_last: bool) -> Any:
    """The memory of a value as a dense image of ``size``, which may exceed it: nothing may read or write the result."""
    storage, layout = ir.as_storage_and_layout(ir.ExternKernel.realize_input(given))
    order = {4: ir.NHWC_STRIDE_ORDER, 5: ir.NHWDC_STRIDE_ORDER}[len(size)] if channels_last else [*reversed(range(len(size)))]
    stride = ir.FlexibleLayout.stride_ordered(size, order)
    return ir.TensorBox(ir.ReinterpretView(data=storage, layout=ir.FixedLayout(layout.device, layout.dtype, [*size], stride)))

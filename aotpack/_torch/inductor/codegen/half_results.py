"""Results in half precision, which are rounded as eager rounds them.

Inductor computes a loop in float32 and rounds what it stores. Within the loop ``(y.half() * y.half()).isinf()`` is then
False where eager's is True. Here each node's result is rounded. What one node computes in several steps is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import ops
from torch.fx import Node

from ...api.torch_types import HALVES

_EXACT: Final = {
    "abs", "cat", "ceil", "clone", "constant_pad_nd", "convert_element_type", "copy", "embedding", "expand", "flip", "floor",
    "full", "gather", "index", "index_select", "maximum", "minimum", "neg", "relu", "round", "select_scatter", "sign",
    "slice_scatter", "trunc", "where",
}  # fmt: skip
"""Operators whose results are exact, or rounded by their lowering. Others lose nothing but time if they are exact."""
_KEEPS_NUMBERS: Final = {"mul", "div"}
"""Operators that eager computes in float32 with a number that it does not round."""


def rounded(node: Node, result: Any) -> Any:
    """What Inductor made of ``node``, rounded if it is a half type that generated code computes."""
    if not isinstance(result, ir.TensorBox) or not isinstance(result.data, ir.StorageBox):
        return result
    data = result.data.data
    if not isinstance(data, ir.Pointwise) or data.dtype not in HALVES or _name(node) in _EXACT:
        return result
    load = result.make_loader()

    def inner(index: Any) -> Any:
        return ops.to_dtype(ops.to_dtype(load(index), data.dtype, use_compute_types=False), data.dtype)

    return ir.Pointwise.create(device=data.device, dtype=data.dtype, inner_fn=inner, ranges=list(data.ranges))


def with_numbers(node: Node, args: tuple[Any, ...], call: Callable[[tuple[Any, ...]], Any]) -> Any:
    """What ``call`` makes of the arguments of ``node``: in float32, if it combines a half type with a number."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype not in HALVES or _name(node) not in _KEEPS_NUMBERS:
        return call(args)
    if node.kwargs or len(args) != 2 or not any(map(_is_number, args)):
        return call(args)
    widened = tuple(lowering.to_dtype(arg, torch.float32) if isinstance(arg, ir.TensorBox) else arg for arg in args)
    return lowering.to_dtype(call(widened), value.dtype)


def _is_number(arg: Any) -> bool:
    return isinstance(arg, float | int) or (isinstance(arg, ir.IRNode) and not arg.get_size())


def _name(node: Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return packet.__name__ if packet is not None else ""

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
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.fx import Node

from ...api.nodes import value_of
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
    """What ``call`` makes of the arguments of ``node``, if it combines a half type with numbers of a wider type.

    Products and quotients are computed in float32. Other operators round the number first: Inductor casts a tensor without
    dimensions in the loop, where it keeps all digits.
    """
    dtype = _common_type(node)
    if dtype not in HALVES:
        return call(args)
    if _name(node) not in _KEEPS_NUMBERS:
        return call(tuple(_rounded_number(arg, dtype) for arg in args))
    numbers = args[1:] if _name(node) == "div" else args
    if node.kwargs or len(args) != 2 or not any(map(_is_number, numbers)):
        return call(tuple(_rounded_number(arg, dtype) for arg in args))
    widened = tuple(lowering.to_dtype(arg, torch.float32) if isinstance(arg, ir.TensorBox) else arg for arg in args)
    return lowering.to_dtype(call(widened), dtype)


def _common_type(node: Node) -> torch.dtype | None:
    """The type in which an operator combines the elements of its arguments. None: it does not."""
    if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.pointwise not in node.target.tags:
        return None
    values = [value_of(arg) if isinstance(arg, Node) else arg for arg in node.args]
    elements = [value for value in values if isinstance(value, torch.Tensor | bool | int | float | complex)]
    if not any(isinstance(value, torch.Tensor) for value in elements):
        return None
    return elementwise_dtypes(*elements, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)[1]


def _rounded_number(arg: Any, dtype: torch.dtype) -> Any:
    """A tensor without dimensions in a half type, rounded. Others are as they were."""
    if not isinstance(arg, ir.TensorBox) or arg.get_size() or arg.get_dtype() not in (torch.float32, torch.float64):
        return arg
    return lowering.to_dtype(arg, dtype, copy=True, use_compute_types=False)


def _is_number(arg: Any) -> bool:
    return isinstance(arg, float | int) or (isinstance(arg, ir.IRNode) and not arg.get_size())


def _name(node: Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return packet.__name__ if packet is not None else ""

"""Rewrites of a graph before Inductor compiles it, in place of Inductor's own.

Inductor rewrites what looks like a program it knows, and compares too little. Its patterns ignore keyword
arguments that they do not name (``alpha`` of ``add``, ``dtype`` of ``cumsum``), and often sizes, dimensions and
constants. :data:`OPTIONS` turns these passes off: patterns before the gradient (split and concatenation, groups),
of the joint graph (attention, scaled softmax, pairs of casts and views, ``randperm``, ``scatter`` into constants),
after the gradient (``addmm``, ``cumsum`` of constants, concatenations, partial extremes, oneDNN, int8 weights),
and the folding of constants. docs/operators.md lists each with what it takes for granted.

Two rewrites here save time or memory, and check all that they assume. The others compute what eager computes: negative
numbers as unsigned ones, and ``erf`` of small numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.fx.node import map_arg

from ...api.fake_tensors import fake_mode_of
from ...api.graph_modules import graph_modules_in
from ...api.nodes import value_of
from ...api.torch_types import HALVES

OPTIONS: Final[Mapping[str, bool]] = {"pattern_matcher": False, "joint_graph_constant_folding": False}
"""Inductor's options that turn its rewrites off."""

_aten = torch.ops.aten
_CONVERT: Final = torch.ops.prims.convert_element_type.default


def rewritten(module: GraphModule) -> None:
    """Apply all rewrites to a graph, in place."""
    for part in graph_modules_in(module):
        changed = False
        for node in part.graph.find_nodes(op="call_function", target=_aten.add.Tensor):
            changed = _add_to_product(part.graph, node) or changed
        for node in part.graph.find_nodes(op="call_function", target=_aten.scatter.value):
            changed = _compare_indices(part.graph, node) or changed
        for node in part.graph.find_nodes(op="call_function", target=_aten.erf.default):
            changed = _keep_small_errors(part.graph, node) or changed
        for node in part.graph.find_nodes(op="call_function", target=_CONVERT):
            changed = _wrap_negative_numbers(part.graph, node) or changed
        if changed:
            part.graph.eliminate_dead_code()
            part.recompile()


def _add_to_product(graph: Graph, node: Node) -> bool:
    """Replace ``x + a @ b`` by ``addmm``, if nothing else reads the product. Returns whether it was replaced.

    Both terms have the result's shape and its type, which is no integer, and no half type: a product is rounded
    before it is added. The sum is not scaled (``alpha``).
    """
    if (
        node.kwargs
        or value_of(node).dtype in HALVES
        or not all(isinstance(term, Node) and _is_like(value_of(term), value_of(node)) for term in node.args)
    ):
        return False
    one, other = cast("tuple[Node, Node]", node.args)
    for x, product in ((other, one), (one, other)):
        if product.target is _aten.mm.default and len(product.users) == 1 and x is not product:
            with graph.inserting_before(node):
                sum_ = graph.call_function(_aten.addmm.default, (x, *product.args))
            sum_.meta = dict(node.meta)
            node.replace_all_uses_with(sum_)
            graph.erase_node(node)
            return True
    return False


def _is_like(value: Any, result: torch.Tensor) -> bool:
    """Whether a value is a tensor of real numbers with the shape and type of a result."""
    return (
        isinstance(value, torch.Tensor)
        and value.dtype == result.dtype
        and value.is_floating_point()
        and statically_known_true(sym_eq(value.shape, result.shape))
    )


def _compare_indices(graph: Graph, node: Node) -> bool:
    """Replace a ``scatter`` of a number into a constant by comparisons, if each row gets one. Returns whether it was.

    The gradient of a cross entropy is such a tensor, as large as the logits. Comparisons need no memory for it. Both
    numbers are rounded to the tensor's type, and an index outside of it is an error, as in eager.
    """
    full, dim, index, number = cast("tuple[Any, int, Any, Any]", node.args)
    if full.target is not _aten.full.default or isinstance(full.args[1], Node) or isinstance(number, Node):
        return False
    result, shape = value_of(node), list(value_of(index).shape)
    dim = dim % max(result.ndim, 1)
    expected = [*result.shape[:dim], 1, *result.shape[dim + 1 :]]
    if not result.ndim or len(shape) != result.ndim or not statically_known_true(sym_eq(shape, expected)):
        return False
    call = _calls_like(graph, node)
    how: dict[str, Any] = {"dtype": result.dtype, "device": result.device}
    with graph.inserting_before(node):
        length = full.args[0][dim]
        outside = call(_aten.logical_or.default, call(_aten.lt.Scalar, index, 0), call(_aten.ge.Scalar, index, length))
        inside = call(_aten.logical_not.default, call(_aten.any.default, outside))
        call(_aten._assert_async.msg, inside, f"index out of bounds for dimension {dim}")
        numbers: dict[str, Any] = {"dtype": torch.int64, "device": result.device, "requires_grad": False}
        places = call(torch.ops.prims.iota.default, length, start=0, step=1, **numbers)
        for _ in range(result.ndim - 1 - dim):
            places = call(_aten.unsqueeze.default, places, -1)
        chosen, others = (call(_aten.full.default, [], value, **how) for value in (number, full.args[1]))
        compared = call(_aten.where.self, call(_aten.eq.Tensor, index, places), chosen, others)
    node.replace_all_uses_with(compared)
    graph.erase_node(node)
    return True


def _wrap_negative_numbers(graph: Graph, node: Node) -> bool:
    """Convert real numbers to ``uint32`` and ``uint64`` through ``int64``. Returns whether that was needed.

    C++ leaves the conversion of negative numbers undefined: instructions for vectors saturate, others wrap, as eager does.
    """
    source, dtype = cast("tuple[Node, torch.dtype]", node.args)
    if dtype not in (torch.uint32, torch.uint64) or not value_of(source).is_floating_point():
        return False
    call = _calls_like(graph, node)
    with graph.inserting_before(node):
        whole = call(_CONVERT, source, torch.int64)
        # int64 holds half of the numbers of uint64. Eager subtracts 2^63 of the others, and flips the highest bit.
        if dtype is torch.uint64:
            rest = call(_CONVERT, call(_aten.sub.Tensor, source, 2.0**63), torch.int64)
            large = call(_aten.bitwise_not.default, call(_aten.bitwise_xor.Scalar, rest, 2**63 - 1))
            whole = call(_aten.where.self, call(_aten.ge.Scalar, source, 2.0**63), large, whole)
    node.update_arg(0, whole)
    return True


def _keep_small_errors(graph: Graph, node: Node) -> bool:
    """Compute ``erf`` near 0 by its series. Returns whether that was needed.

    ``Vectorized<float>::erf`` subtracts a number near 1 from 1, which leaves no digits of a small result. That is the same
    after ``1 + erf(x)``, as in ``gelu``.
    """
    if value_of(node).dtype != torch.float32 or all(map(_adds_one, node.users)):
        return False  # eager's kernel for half precision leaves none, either, and float64 has another one
    (x,) = node.args
    call = _calls_like(graph, node)
    with graph.inserting_before(node):
        square = call(_aten.mul.Tensor, x, x)
        series = call(_aten.mul.Tensor, square, _ERF[-1])
        for term in reversed(_ERF[1:-1]):
            series = call(_aten.mul.Tensor, call(_aten.add.Tensor, series, term), square)
        small = call(_aten.mul.Tensor, call(_aten.add.Tensor, series, _ERF[0]), x)
        is_small = call(_aten.lt.Scalar, call(_aten.abs.default, x), 0.5)
        error = call(_aten.erf.default, x)
        chosen = call(_aten.where.self, is_small, small, error)
    node.replace_all_uses_with(chosen)
    graph.erase_node(node)
    return True


_ERF: Final = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(7)]
"""Coefficients of ``x``, ``x ** 3``, … in the series of ``erf``."""


def _adds_one(node: Node) -> bool:
    return node.target is _aten.add.Tensor and bool(node.args[1] == 1) and not node.kwargs


def _calls_like(graph: Graph, node: Node) -> Callable[..., Node]:
    """A function that adds calls to a graph, in place of parts of ``node``."""
    mode = fake_mode_of(graph)

    def call(target: Any, *args: Any, **kwargs: Any) -> Node:
        made = graph.call_function(target, args, kwargs)
        values: Any = map_arg((args, kwargs), value_of)
        with mode:
            made.meta = {**node.meta, "val": target(*values[0], **values[1])}
        return made

    return call

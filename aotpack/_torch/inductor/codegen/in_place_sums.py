"""Sums of a tensor and of additions to zeros at indices: the additions are made to the tensor itself.

The gradient of an embedding whose weight is also the output layer's is such a sum: a product of
matrices, and rows that are added to zeros. Inductor fills a tensor of the weight's size with zeros,
adds the rows to it, and adds that to the product. With the rows added to the product in place, three
passes over memory of that size are saved, and the memory. The peak of a step of GPT-2 small is 511 MB
instead of 659. In a profile its step took 833 ms instead of 894.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.fx import Graph, GraphModule, Node

from ...api.graph_modules import graph_modules_in
from ...api.nodes import value_of, without_views

_aten = torch.ops.aten
_MASKED = _aten._unsafe_masked_index_put_accumulate.default


def added_in_place(module: GraphModule) -> None:
    """Let additions to zeros that are then added to ``x`` be additions to ``x``, if nothing else reads ``x``.

    Inductor makes them in place. Terms are added in another order, so this is for ``float32`` and
    ``float64`` only.
    """
    for part in graph_modules_in(module):
        changed = False
        for node in part.graph.find_nodes(op="call_function", target=_aten.add.Tensor):
            changed = _add_in_place(part.graph, node) or changed
        if changed:
            part.graph.eliminate_dead_code()
            part.recompile()


def _add_in_place(graph: Graph, node: Node) -> bool:
    """Replace a sum, if it is one of these. Returns whether it is."""
    one, other = cast("tuple[Any, Any]", node.args)
    for x, added in ((one, other), (other, one)):
        if not node.kwargs and _is_own(x, node) and _adds_to_zeros(added):
            break
    else:
        return False
    with graph.inserting_before(node):
        if added.target is _MASKED:
            replaced = graph.call_function(_aten._unsafe_index_put.default, (x, *_without_mask(graph, x, *added.args[1:])))
        else:
            replaced = graph.call_function(added.target, (x, *added.args[1:]))
    replaced.meta = {**added.meta, "val": node.meta["val"]}
    node.replace_all_uses_with(replaced)
    graph.erase_node(node)
    return True


def _is_own(x: Any, node: Node) -> bool:
    """Whether ``x`` is computed only for the sum ``node``, and has its layout, whose sizes are fixed."""
    if not isinstance(x, Node) or x.op != "call_function" or len(x.users) != 1 or without_views(x) is not x:
        return False
    value, result = x.meta["val"], value_of(node)
    if not isinstance(value, torch.Tensor) or not all(type(size) is int for size in (*value.shape, *result.shape)):
        return False  # a number, or sizes that vary
    same = (value.dtype, value.shape, value.stride()) == (result.dtype, result.shape, result.stride())
    return same and value.dtype in (torch.float32, torch.float64)


def _adds_to_zeros(added: Any) -> bool:
    """Whether a node, read once, adds to zeros at indices."""
    if not isinstance(added, Node) or len(added.users) != 1:
        return False
    if added.target is not _MASKED and (added.target is not _aten.index_put.default or added.args[3:] != (True,)):
        return False
    zeros = added.args[0]
    return isinstance(zeros, Node) and zeros.target is _aten.full.default and zeros.args[1] in (0, 0.0)


def _without_mask(graph: Graph, x: Node, mask: Node, indices: list[Node | None], values: Node) -> tuple[Any, ...]:
    """The arguments of additions that a mask chooses: indices, values, and that they are added.

    Where the mask is not set 0 is added, at the nearest index that there is.
    """
    value = value_of(values)

    def added(target: Any, *args: Any, like: torch.Tensor, **kwargs: Any) -> Node:
        made = graph.call_function(target, args, kwargs)
        made.meta = {**values.meta, "val": like}
        return made

    def clamped(index: Node, size: Any) -> Node:
        like = value_of(index)
        return added(_aten.clamp_max.default, added(_aten.clamp_min.default, index, -size, like=like), size - 1, like=like)

    sizes = value_of(x).shape
    zero = added(_aten.full.default, [], 0, dtype=value.dtype, device=value.device, like=value.new_zeros(()))
    chosen = [None if index is None else clamped(index, size) for index, size in zip(indices, sizes, strict=False)]
    return chosen, added(_aten.where.self, mask, values, zero, like=value), True

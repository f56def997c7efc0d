"""Replaces sums over rows that have one element by that element.

The gradient of a cross entropy is a number at the label of each row, and zero elsewhere. The gradient of
``log_softmax`` sums each row. Compiled code would compare each element's index with the label, add up, and store the
sums.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from .._torch.api import fake_tensors
from .rewriting import alike, call, is_zeros, texts

_ATEN = torch.ops.aten


def replace_sums_of_one(module: GraphModule) -> None:
    """Replace each sum over a dimension along which one element is set, times a factor that is the same along it."""
    graph = module.graph
    changed = False
    with fake_tensors.fake_mode_of(graph):
        for node in graph.nodes:
            if node.target is _ATEN.sum.dim_IntList and (found := _element(node)) is not None:
                value, factor = found
                with graph.inserting_before(node):
                    node.replace_all_uses_with(call(graph, node, _ATEN.mul.Tensor, factor, value))
                changed = True
    if changed:
        graph.eliminate_dead_code()
        module.recompile()


def _element(total: Node) -> tuple[float, Node] | None:
    """The value that is set in each row, and its factor; null for other sums.

    The rows must have another reader: they are made only if their indices exist.
    """
    args: Any = (*total.args, False)
    product, dims, keeps_dims, *_ = args
    if not isinstance(product, Node) or product.target is not _ATEN.mul.Tensor or len(product.users) == 1:
        return None
    if keeps_dims is not True or total.kwargs or len(dims) != 1:
        return None
    for rows, factor in (product.args, reversed(product.args)):
        value = _value_set(rows, dims[0])
        if value is not None and isinstance(factor, Node) and alike(factor.meta["val"], total.meta["val"]):
            return value, factor
    return None


def _value_set(rows: Any, dim: int) -> float | None:
    """The value of the one element that differs from 0 in each row along ``dim``; null for other tensors."""
    if not isinstance(rows, Node) or rows.target is not _ATEN.scatter.value or not is_zeros(rows.args[0]):
        return None
    args: Any = rows.args
    _, along, index, value = args
    expected = list(rows.meta["val"].shape)
    expected[dim] = 1
    is_one = isinstance(along, int) and (along - dim) % len(expected) == 0
    is_one = is_one and isinstance(index, Node) and texts(index.meta["val"].shape) == texts(expected)
    return value if is_one and isinstance(value, (int, float)) else None

"""Replaces sums of gradients of parts by the parts, stacked.

The gradient of ``x[i]`` is a tensor of zeros with one part filled. If a model uses ``x[0]``,
``x[1]`` and ``x[2]``, as attention does with query, key and value, autograd adds three such
tensors. Compiled code would compute for each element which parts it belongs to. Here the sum is the
stack of the parts, which is copied by rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .._torch.api import fake_tensors

_ATEN = torch.ops.aten


@dataclass(frozen=True)
class _Part:
    """Zeros of a shape, but for ``value`` at an index of a dimension."""

    value: Node
    dim: int
    index: int


def stack_parts(module: GraphModule) -> None:
    """Replace each sum of parts, one for every index of a dimension, by their stack."""
    graph = module.graph
    sums = set(graph.find_nodes(op="call_function", target=_ATEN.add.Tensor))
    changed = False
    for node in reversed(list(graph.nodes)):
        if node not in sums or not _is_plain_sum(node) or any(_is_plain_sum(user) for user in node.users if user in sums):
            continue
        parts = _parts(node)
        if parts is None or not _cover(parts, node):
            continue
        with graph.inserting_before(node), fake_tensors.fake_mode_of(graph):
            ordered = sorted(parts, key=lambda part: part.index)
            pieces = [_call(graph, node, _ATEN.unsqueeze.default, part.value, part.dim) for part in ordered]
            stacked = _call(graph, node, _ATEN.cat.default, pieces, ordered[0].dim)
        if stacked.meta["val"].stride() == node.meta["val"].stride() and stacked.meta["val"].dtype == node.meta["val"].dtype:
            node.replace_all_uses_with(stacked)
            changed = True
    if changed:
        graph.eliminate_dead_code()
        module.recompile()


def _is_plain_sum(node: Node) -> bool:
    return not node.kwargs and all(isinstance(arg, Node) for arg in node.args)


def _parts(node: Node) -> list[_Part] | None:
    """The parts that a sum adds; null if it adds anything else."""
    found: list[_Part] = []
    for term in node.args:
        assert isinstance(term, Node)
        inner = term.target == _ATEN.add.Tensor and _is_plain_sum(term) and len(term.users) == 1
        part = _part(term)
        more = _parts(term) if inner else None if part is None else [part]
        if more is None:
            return None
        found += more
    return found


def _part(node: Node) -> _Part | None:
    if node.target == _ATEN.select_backward.default:
        value, _, dim, index = node.args
    elif node.target == _ATEN.select_scatter.default and _is_zeros(node.args[0]):
        _, value, dim, index = node.args
    else:
        return None
    if not (isinstance(value, Node) and isinstance(dim, int) and isinstance(index, int)):
        return None
    shape = node.meta["val"].shape
    size = shape[dim]
    dim = dim % len(shape)
    return _Part(value, dim, index + size if index < 0 else index) if isinstance(size, int) else None


def _is_zeros(value: object) -> bool:
    if not isinstance(value, Node):
        return False
    filled_with = value.args[1] if value.target == _ATEN.full.default else None
    return value.target == _ATEN.zeros.default or (isinstance(filled_with, (int, float)) and filled_with == 0)


def _cover(parts: list[_Part], node: Node) -> bool:
    """Whether the parts have every index of one dimension, once."""
    dims = {part.dim for part in parts}
    return len(dims) == 1 and sorted(part.index for part in parts) == list(range(node.meta["val"].shape[min(dims)]))


def _call(graph: torch.fx.Graph, like: Node, target: torch._ops.OpOverload, *args: Any) -> Node:
    """A call with the type of its result, at the place and source line of ``like``."""
    made = graph.call_function(target, args)
    made.meta = {name: value for name, value in like.meta.items() if name != "val"}
    made.meta["val"] = target(*torch.fx.map_arg(args, lambda node: node.meta["val"]))
    return made

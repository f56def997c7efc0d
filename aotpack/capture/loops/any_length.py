"""Captures a loop of the user's Python over a length that varies.

Dynamo unrolls ``for t in range(x.shape[1])``, which fixes the length. Here the model is captured at two lengths, and its
loops are rolled (:mod:`.rolled`). If both captures are then one graph, it holds for any length. Both lengths are
small, so that the time of a build does not depend on the length of the example.

A model may use the length in other ways, too: ``if x.shape[1] > 50``, ``k = max(1, x.shape[1] // 8)``. Two small lengths do
not show that. So the model and the graph run at lengths of the whole range, and must give the same results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence, Set
from typing import Any, Final

import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from ..._torch.api import fake_tensors
from ..._torch.tracing import dynamo
from ..dry_run.outcomes import same_outcomes
from ..front_end_input import FrontEndInput
from ..inputs.dynamic_shapes import DynamicShapes
from .nodes import frozen
from .rolled import count_from_ends, roll

_LENGTH: Final = 6
_LEAST: Final = 3
_LONGEST: Final = 2048
"""The longest length at which the graph is compared with the model, whatever the user allows."""

_Group = dict[tuple[int, int], int]
"""Sizes that are one in dynamic_shapes: the number of an argument's leaf and the dimension, with the example's size."""


def captured_for_any_length(source: FrontEndInput, fixed: Set[int]) -> GraphModule | None:
    """Capture the model for all lengths, if it loops over them. ``fixed``: the sizes that another capture made constant.

    Returns None if the model depends on the length in another way.
    """
    groups = [group for group in _groups(source) if {*group.values()} & fixed]
    tried = [groups] if len(groups) == 1 else [groups, *([group] for group in groups)]
    return next((graph for some in tried if some and (graph := _captured(source, some)) is not None), None)


def _captured(source: FrontEndInput, groups: Sequence[_Group]) -> GraphModule | None:
    lengths = [_lengths(source.shapes, group, _LENGTH + 3 * i) for i, group in enumerate(groups)]
    graphs = []
    for i in range(2):
        chosen = {place: (pair[i], size) for pair, group in zip(lengths, groups, strict=True) for place, size in group.items()}
        args, kwargs = _resized(source, chosen)
        left = {n: {dim: b for dim, b in dims.items() if (n, dim) not in chosen} for n, dims in source.shapes.dims.items()}
        varying = dataclasses.replace(source.shapes, dims=left).of_tensors(args, kwargs)
        with fake_tensors.marked_dynamic(varying):
            try:
                graph = dynamo.capture_with_dynamo(source.model, args, kwargs)
            except dynamo.REFUSED:
                return None
        if not roll(graph, _LEAST):
            return None
        count_from_ends(graph.graph)
        graphs.append(graph)
    agree = _shape(graphs[0]) == _shape(graphs[1]) and _agrees(source, groups, graphs[0])
    return graphs[0] if agree else None


def _agrees(source: FrontEndInput, groups: Sequence[_Group], graph: GraphModule) -> bool:
    """Whether the graph does at other lengths what the model does: small ones, then up to the longest, with gradients."""
    ranges = [_range(source.shapes, group) for group in groups]
    least, longest = min(low for low, _ in ranges), max(high for _, high in ranges)
    tried = [*range(least, min(least + _LENGTH, longest))]
    while tried and (further := tried[-1] * 5 // 4 + 1) < longest:
        tried.append(further)
    for i, length in enumerate([*tried, longest]):
        lengths = [min(max(low, length + i % 2 * number), high) for number, (low, high) in enumerate(ranges)]
        chosen = {place: (n, size) for n, group in zip(lengths, groups, strict=True) for place, size in group.items()}
        args, kwargs = _resized(source, chosen)
        if not same_outcomes(source.model, graph, args, kwargs, gradients=source.grad and length == longest):
            return False
    return True


def _range(shapes: DynamicShapes, group: _Group) -> tuple[int, int]:
    """The shortest length that the user allows, and the longest one to try. Sizes 0 and 1 have checks of their own."""
    bounds = [shapes.dims[number][dim] for number, dim in group]
    low = max(1, *(2 if each.minimum is None else each.minimum for each in bounds))
    return low, max(low, min([_LONGEST, *(each.maximum for each in bounds if each.maximum is not None)]))


def _groups(source: FrontEndInput) -> list[_Group]:
    """The sizes that vary, less those that torch decides about, and those that are computed from others."""
    leaves = pytree.tree_leaves((source.args, source.kwargs))
    groups: dict[Hashable, _Group] = {}
    for number, dims in source.shapes.dims.items():
        for dim, bounds in dims.items():
            if not bounds.automatic and (bounds.factor, bounds.offset) == (1, 0):
                groups.setdefault(bounds.root or (number, dim), {})[number, dim] = leaves[number].shape[dim]
    return [*groups.values()]


def _lengths(shapes: DynamicShapes, group: _Group, low: int) -> tuple[int, int]:
    """Two lengths that the user allows: small ones, but of enough iterations to see a loop."""
    bounds = [shapes.dims[number][dim] for number, dim in group]
    low = max([low, *(each.minimum or 0 for each in bounds)])
    high = min([low + 1, *(each.maximum for each in bounds if each.maximum is not None)])
    return max(high - 1, 1), high


def _resized(source: FrontEndInput, chosen: Mapping[tuple[int, int], tuple[int, int]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example with other lengths. ``chosen``: the length and the example's. Where it has fewer elements, they repeat."""
    leaves, spec = pytree.tree_flatten((source.args, source.kwargs))
    for (number, dim), (length, size) in chosen.items():
        leaf = leaves[number]
        with torch.no_grad():
            longer = leaf.index_select(dim, torch.arange(length, device=leaf.device) % size)
        leaves[number] = longer.requires_grad_(leaf.requires_grad)
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return args, kwargs


def _shape(module: GraphModule) -> Hashable:
    """A graph and those inside of it, but for the names of its nodes."""
    numbers: dict[Node, int] = {}
    lines: list[Hashable] = []

    def numbered(node: Node) -> Any:
        return _Number(numbers[node])

    for number, node in enumerate(module.graph.nodes):
        numbers[node] = number
        args, kwargs = map_arg((node.args, node.kwargs), numbered)
        target = _shape(inner) if isinstance(inner := _inner(module, node), GraphModule) else node.target
        lines.append((node.op, target, frozen(args), frozen(kwargs)))
    return tuple(lines)


def _inner(module: GraphModule, node: Node) -> Any:
    return getattr(module, str(node.target), None) if node.op == "get_attr" else None


@dataclasses.dataclass(frozen=True)
class _Number:
    """The number of a node, in the place of the node."""

    value: int

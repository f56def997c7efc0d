"""Turns the copies of views in the subgraphs of control flow back into views.

Torch makes subgraphs functional with a copy of each view (``t_copy``), and of a tensor for each write to a part of it.
A loop would copy its weights in every iteration. Only what a subgraph returns, or gives to a subgraph of its own, has
to be a copy.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from .._torch.api.graph_modules import graph_modules_in
from .._torch.api.nodes import view_of_copy
from ..graph import views
from .rewriting import alike, texts

_ATEN: Final = torch.ops.aten
_SAME: Final = (_ATEN.view.default, _ATEN.expand.default, _ATEN.detach.default, _ATEN.alias.default)
"""Views that are their tensor, if the sizes are equal."""


def restore_views(module: GraphModule) -> None:
    """Turn copies of views in the subgraphs of a graph into views, in place."""
    for region in graph_modules_in(module):
        if region is not module:
            _restore(region)
            region.recompile()


def _restore(region: GraphModule) -> None:
    graph = region.graph
    takers = [node for node in graph.nodes if node.op == "output" or isinstance(node.target, torch._ops.HigherOrderOperator)]
    calls = [node for node in graph.nodes if node.op == "call_function" and node not in takers]
    if any(isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable for node in calls):
        return
    for node in graph.find_nodes(op="call_function", target=_ATEN.split_copy.Tensor):
        _read_parts_themselves(node)
    left = {*graph.nodes}
    calls = [node for node in calls if node in left]
    taken = {source for taker in takers for source in taker.all_input_nodes}
    found = _with_views(calls, _with_bases(region, taken))
    if all(_are_alike(found[node][1], node.meta["val"]) for node in taken if node in found):
        for node, (target, value) in found.items():
            node.target, node.meta = target, {**node.meta, "val": value}
        for node in calls:
            if node not in taken and (same := _same(node)) is not None:
                node.replace_all_uses_with(same)
    for node in reversed(calls):
        is_read = node.users or node in taken
        if not is_read and (
            node.target in (operator.getitem, _ATEN.slice_scatter.default, _ATEN.split_copy.Tensor) or views.is_view(node)
        ):
            graph.erase_node(node)


def _read_parts_themselves(split: Node) -> None:
    """Let the parts of a tensor into which another was written be that one, and parts of the tensor before."""
    given: Any = (*split.args, 0)
    whole, size, dim, *_ = given
    while whole.target is _ATEN.slice_scatter.default and len(whole.args) == 5:
        before, value, along, start, end = whole.args
        if along != dim or not all(type(number) is int for number in (size, start, end)):
            return
        positions: dict[Node, Any] = {item: item.args[1] for item in split.users}
        written = [item for item, i in positions.items() if (i * size, (i + 1) * size) == (start, end)]
        others = [i for item, i in positions.items() if item not in written]
        if any(i * size < end and start < (i + 1) * size for i in others):
            return
        if not all(_are_alike(value.meta["val"], item.meta["val"]) for item in written):
            return
        for item in written:
            item.replace_all_uses_with(value)
            item.graph.erase_node(item)
        split.update_arg(0, before)
        whole = before


def _with_bases(region: GraphModule, taken: set[Node]) -> set[Node]:
    """``taken``, and what these are views of."""
    found = {*taken}
    for node in reversed(region.graph.nodes):
        if node in found and (node.target is _ATEN._unsafe_view.default or views.parent(node) is not None):
            found.update(node.all_input_nodes)
    return found


def _with_views(calls: list[Node], copied: set[Node]) -> dict[Node, tuple[Any, Any]]:
    """The nodes that become views, with the views, and those whose strides follow from these; each with its new value."""
    found: dict[Node, tuple[Any, Any]] = {}

    def value_of(node: Node) -> Any:
        return found[node][1] if node in found else node.meta["val"]

    for node in calls:
        view = None if node in copied else view_of_copy(node.target)
        if view is _ATEN.view.default and not _can_be_viewed(value_of(node.all_input_nodes[0]), node):
            view = None
        if view is None and not any(source in found for source in node.all_input_nodes):
            continue
        target: Any = view or node.target
        args: Any
        args, kwargs = map_arg((node.args, node.kwargs), value_of)
        value = args[0] if view is _ATEN.view.default and _has_sizes_of(args[0], node) else target(*args, **kwargs)
        if view is not None or not _are_alike(value, node.meta["val"]):
            found[node] = target, value
    return found


def _can_be_viewed(value: torch.Tensor, node: Node) -> bool:
    return alike(value, value.new_empty(value.shape)) or _has_sizes_of(value, node)


def _has_sizes_of(value: torch.Tensor, node: Node) -> bool:
    return texts(value.shape) == texts(node.meta["val"].shape)


def _same(node: Node) -> Node | None:
    """The tensor that a view is: of equal sizes, or transposed twice."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node):
        return None
    if node.target in _SAME and alike(source.meta["val"], node.meta["val"]):
        return source
    return source.args[0] if node.target is source.target is _ATEN.t.default else None  # type: ignore[return-value]


def _are_alike(found: Any, expected: Any) -> bool:
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
    return all(alike(*pair) for pair in pairs if isinstance(pair[0], torch.Tensor))

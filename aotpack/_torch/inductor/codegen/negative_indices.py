"""Operators on rows (``api/negative_indices.py``) as indexing that takes no negative index.

Inductor decomposes them into indexing, which counts negative indices from the end. The graph that it
compiles has indexing instead whose code refuses negative indices. That costs less than to count them
from the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch._inductor import lowering, virtualized
from torch.fx import Graph, GraphModule, Node

from ...api.graph_modules import graph_modules_in
from ...api.negative_indices import MARK, ROWS
from ...api.nodes import value_of
from ...api.patching import hooked

_aten = torch.ops.aten


def as_indexing(module: GraphModule) -> None:
    """Replace the operators by indexing that takes no negative index."""
    for part in graph_modules_in(module):
        found = [node for operator in ROWS for node in part.graph.find_nodes(op="call_function", target=operator)]
        for node in filter(_can_be_indexing, found):
            _index(part.graph, node if value_of(node.args[0]).ndim else _on_a_vector(part.graph, node))
        if found:
            part.recompile()


@contextlib.contextmanager
def refuse_negative_rows() -> Iterator[None]:
    """Lower marked indexing without counting negative indices from the end."""
    sized: Callable[..., Any] = lowering.index_output_size_and_inner_fn

    def without_wrap(*args: Any, **kwargs: Any) -> Any:
        node = virtualized.V.graph.current_node
        return sized(*args, **kwargs | ({"wrap_neg": False} if MARK in node.meta else {}))

    with hooked("inductor-rows", lowering, "index_output_size_and_inner_fn", without_wrap):
        yield


def _can_be_indexing(node: Node) -> bool:
    """Whether Inductor has indexing for these tensors; otherwise it calls the operator's kernel.

    The kernel adds ``bfloat16`` with fewer roundings than Inductor would. For complex tensors Inductor
    calls the kernel of indexing, which counts negative indices from the end.
    """
    value = value_of(node.args[0])
    kernel_adds = node.target is _aten.index_add.default and (value.dtype == torch.bfloat16 or not value.ndim)
    return not (kernel_adds or value.is_complex())


def _on_a_vector(graph: Graph, node: Node) -> Node:
    """Let a node of a tensor without dimensions be a view of one that takes a vector. Returns the latter."""
    x, _, index, *source = cast("tuple[Any, ...]", node.args)
    with graph.inserting_before(node):
        x, *source = [_viewed(graph, each, [1]) for each in (x, *source)]
        inner = graph.create_node("call_function", node.target, (x, 0, index, *source), node.kwargs)
    inner.meta |= node.meta | {"val": value_of(node).view(1)}
    node.target, node.args, node.kwargs = _aten.view.default, (inner, [*value_of(node).shape]), {}
    return inner


def _index(graph: Graph, node: Node) -> None:
    x, dim, index, *source = cast("tuple[Any, ...]", node.args)
    with graph.inserting_before(node):
        if not value_of(index).ndim:
            index = _viewed(graph, index, [1])
        alpha: Any = node.kwargs.get("alpha", 1)
        if alpha != 1:
            scaled = graph.call_function(_aten.mul.Tensor, (source[0], alpha))
            scaled.meta |= node.meta | {"val": value_of(source[0]) * alpha}
            source = [scaled]
    indices = [None] * (dim % value_of(x).ndim) + [index]
    node.meta[MARK] = node.target
    adds = node.target is _aten.index_add.default
    node.target = _aten.index_put.default if source else _aten.index.Tensor
    node.args = (x, indices, *source, *([True] if adds else []))
    node.kwargs = {}


def _viewed(graph: Graph, node: Any, size: list[int]) -> Node:
    view = graph.call_function(_aten.view.default, (node, size))
    view.meta |= node.meta | {"val": value_of(node).view(size)}
    return view

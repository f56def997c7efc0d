"""Specializes a graph for fixed sizes: restores it with numbers instead of symbols, and folds
computations with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.nn import Module

from ...graph.restore import symbols_of, to_fx
from ..base import GraphToCompile


def at_sizes(item: GraphToCompile, sizes: Mapping[str, int]) -> GraphModule:
    """The graph for one value of each symbol of its method, with the user's source lines.

    Integer inputs are not read.
    """
    assert item.method is not None
    module = to_fx(item.graph, symbols_of(item.method, [item.graph], sizes))
    _fix(module, item.module)
    return module


def _fix(module: GraphModule, traced: Module | None) -> None:
    """Copy source lines from the ``traced`` nodes, and fold known numbers; likewise in the graphs
    that it runs.
    """
    nodes = traced.graph.nodes if isinstance(traced, GraphModule) else ()
    lines = {node.name: node.meta["stack_trace"] for node in nodes if "stack_trace" in node.meta}
    for node in module.graph.nodes:
        if node.name in lines:
            node.meta["stack_trace"] = lines[node.name]
    _fold(module.graph)
    module.recompile()
    for name, inner in module.named_children():
        assert isinstance(inner, GraphModule)
        _fix(inner, getattr(traced, name, None))


def _fold(graph: Graph) -> None:
    """Replace known numbers, and remove assertions that hold."""
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if isinstance(value, (int, float)):
            for user in list(node.users):
                _replace(user, node, value)
            if node.op != "placeholder":
                graph.erase_node(node)
        elif node.target is torch.ops.aten._assert_scalar.default and node.args[0] in (True, 1):
            graph.erase_node(node)


def _replace(user: Node, node: Node, value: float) -> None:
    def put(arg: Node) -> Any:
        return value if arg is node else arg

    user.args, user.kwargs = map_arg(user.args, put), map_arg(user.kwargs, put)

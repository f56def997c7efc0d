"""A graph at fixed sizes: restored with numbers in place of the symbols, what was computed from them folded."""

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
    """The graph for one value of each symbol of its method, with the lines of the user's code. Integer inputs are not read."""
    assert item.method is not None
    module = to_fx(item.graph, symbols_of(item.method, [item.graph], sizes))
    _fix(module, item.module)
    return module


def _fix(module: GraphModule, traced: Module | None) -> None:
    """Give nodes the lines of those that were ``traced``, and fold what is a number by now; the same in the graphs they run."""
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
    """Replace numbers that are known by now, and take out the assertions that hold."""
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

"""Finds graphs inside graphs: control flow, and nested regions that a model or a target marks."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.fx import Graph, GraphModule, Node

CALL = torch.ops.higher_order.invoke_subgraph
"""Calls a nested compile region, a graph that is an attribute of the calling graph."""

CONTROL_FLOW = {
    CALL: slice(1),
    torch.ops.higher_order.cond: slice(1, 3),
    torch.ops.higher_order.while_loop: slice(2),
    torch.ops.higher_order.scan: slice(1),
    torch.ops.higher_order.map_impl: slice(1),
}
"""Operators that run graphs, and which of their arguments are graphs."""


def graphs_run_by(node: Node) -> tuple[Node, ...]:
    """The arguments of a node that are graphs which it runs."""
    return node.args[CONTROL_FLOW[node.target]] if node.target in CONTROL_FLOW else ()  # type: ignore[return-value]


def regions(module: GraphModule, but: Collection[Node] = ()) -> dict[str, GraphModule]:
    """The graphs by name that the nodes of a graph run, except the nodes in ``but``."""
    names = dict.fromkeys(str(arg.target) for node in module.graph.nodes if node not in but for arg in graphs_run_by(node))
    return {name: module.get_submodule(name) for name in names}  # type: ignore[misc]


def copy_of(module: GraphModule) -> GraphModule:
    """A copy of a graph; the graphs that it runs are shared."""
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return GraphModule(module, graph)

"""Rules of a graph (spec/graph.md). They are separate from a program's rules, because native code needs no graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ..errors import Problem
from . import schema, subgraphs
from .validate import refuse
from .validate_expressions import flat


def validate_graph(graph: schema.Graph, where: str) -> None:
    """Check rules G1 to G4, G7 and G8.

    Each name is defined once, before its use. Subgraphs fit the operators that use them.

    Raises:
        CorruptBundleError: lists every broken rule with its path in the document.
    """
    if subgraphs.is_too_deep(graph):
        refuse(where, [Problem("$.subgraphs", f"G8: they are nested more than {subgraphs.MAX_DEPTH} deep")])
    refuse(where, _graph_problems(graph, "$"))


def _graph_problems(graph: schema.Graph, at: str) -> Iterator[Problem]:
    if len(graph.inputs) != len(graph.input_values):
        yield Problem(f"{at}.input_values", "G1: there is one for each input")
    defined = set(graph.inputs)
    if len(defined) != len(graph.inputs):
        yield Problem(f"{at}.inputs", "G2: a name is defined twice")
    for i, node in enumerate(graph.nodes):
        yield from (Problem(f"{at}.nodes[{i}]", message) for message in _node_problems(node, graph, defined))
        defined.add(node.name)
    for i, arg in enumerate(graph.outputs):
        for item in flat([arg]):
            if isinstance(item, schema.ValueRef) and item.name not in defined:
                yield Problem(f"{at}.outputs[{i}]", f"G3: {item.name!r} is not defined")
            if isinstance(item, schema.GraphArg):
                yield Problem(f"{at}.outputs[{i}]", "G7: a subgraph cannot be a result")
    for name, sub in graph.subgraphs.items():
        yield from _graph_problems(sub, f"{at}.subgraphs[{name!r}]")


def _node_problems(node: schema.Node, graph: schema.Graph, defined: Collection[str]) -> Iterator[str]:
    """Rules that a node breaks. ``defined`` are the names that stand before it."""
    args = list(flat([*node.args, *node.kwargs.values()]))
    missing = [arg.name for arg in args if isinstance(arg, schema.GraphArg) and arg.name not in graph.subgraphs]
    for arg in args:
        if isinstance(arg, schema.ValueRef) and arg.name not in defined:
            yield f"G3: uses {arg.name!r} before it is defined"
    yield from (f"G4: there is no subgraph {name!r}" for name in missing)
    if not missing:
        yield from (f"G7: {message}" for message in subgraphs.problems(node, graph))
    if node.name in defined:
        yield f"G2: the name {node.name!r} is defined twice"

"""Finds nodes of a graph whose values are those of other nodes, so that an interpreter need not compute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ..format import schema

_DETACH, _TRANSPOSE = "aten.detach.default", "aten.t.default"
_NEW = "aten.mm.default"
"""An operator whose result shares memory with nothing. The gradient of a linear layer's weight is a transposed one, twice."""


def same_values(graph: schema.Graph) -> dict[str, str]:
    """For a node that need not be computed, the value to read in its place. An empty name: nothing reads it.

    Left out are ``detach``, which does nothing where no gradients are recorded, and matrices that are transposed twice.
    A result of the graph stays, unless it is such a matrix and a new one.
    """
    reads = Counter(names([*(arg for node in graph.nodes for arg in (*node.args, *node.kwargs.values())), *graph.outputs]))
    results, made = set(names(graph.outputs)), {node.name: node for node in graph.nodes}
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.op not in (_DETACH, _TRANSPOSE) or node.kwargs or len(node.args) != 1:
            continue
        source = _source(node)
        if node.op == _DETACH:
            if source and node.name not in results:
                found[node.name] = found.get(source, source)
            continue
        first = made.get(source)
        original = _source(first) if first is not None and first.op == _TRANSPOSE and not first.kwargs else ""
        if found.get(original) == "":
            continue
        is_own = original in made and made[original].op == _NEW and reads[original] == reads[source] == 1
        if original and (node.name not in results or is_own):
            found[node.name] = found.get(original, original)
            if reads[source] == 1:
                found[source] = ""
    return found


def names(args: Iterable[object]) -> Iterator[str]:
    """Names of the values that ``args`` read."""
    for arg in args:
        if isinstance(arg, schema.ValueRef):
            yield arg.name
        elif isinstance(arg, list):
            yield from names(arg)


def _source(node: schema.Node) -> str:
    return node.args[0].name if len(node.args) == 1 and isinstance(node.args[0], schema.ValueRef) else ""

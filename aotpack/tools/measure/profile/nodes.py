"""Divides what a kernel costs among the nodes that it computes, and so among modules and source lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AotpackError
from aotpack_loader.format import expressions, schema
from aotpack_loader.format.events import Event
from aotpack_loader.format.origins import lines_of, modules_of

from ...report.memory import VIEWS, step_memory
from ...report.operations import references, views

Part = Literal["forward", "backward", "update"]
PARTS: Final[tuple[Part, ...]] = ("forward", "backward", "update")
"""The parts of a step. ``update`` is that of the bundle's optimizers."""
_FREE: Final = VIEWS | {"aten.full", "aten.reshape", "aten.scalar_tensor", "aten.sym_size"}
"""Operators that make views, numbers or constants: beside others in a kernel they cost nothing."""


@dataclass(frozen=True)
class Origin:
    """A module and a source line of the original. An empty module is the root, an empty line unknown."""

    module: str
    line: str


@dataclass(frozen=True)
class GraphNodes:
    """The nodes of one graph: their origins, operators and weights, which are elements of their largest tensor."""

    part: Part
    origins: list[Origin]
    operators: list[str]
    weights: list[float]

    def shares(self, event: Event) -> list[tuple[Origin, float]]:
        """The origins of a kernel's nodes, each with its share of the kernel. Shares add up to 1."""
        nodes = self.nodes(event)
        if not nodes:
            return [(Origin("", ""), 1.0)]
        weights = [self.weights[i] for i in nodes]
        total = sum(weights)
        return [(self.origins[i], weight / total if total else 1 / len(nodes)) for i, weight in zip(nodes, weights, strict=True)]

    def nodes(self, event: Event) -> list[int]:
        """Indices of a kernel's nodes, without those that this graph does not have."""
        return [i for numbers in event.nodes for i in numbers[: max(0, len(self.origins) - numbers.start)]]


def graphs_of(bundle: Bundle, methods: Iterable[str]) -> dict[str, GraphNodes]:
    """The nodes of the graphs of methods, by key (``train.forward``)."""
    return {key: nodes for method in methods for key, nodes in _graphs_of(bundle, method).items()}


def _graphs_of(bundle: Bundle, method: str) -> dict[str, GraphNodes]:
    described, origins = bundle.program.methods[method], bundle.origins()
    graphs = {f"{method}.forward": bundle.graph(described.forward)}
    if described.backward is not None:
        graphs[f"{method}.backward"] = bundle.graph(described.backward.graph)
    forward: Part = "update" if described.role == "step" else "forward"
    parts: dict[str, Part] = {key: "backward" if key.endswith(".backward") else forward for key in graphs}
    hints = {symbol.name: symbol.hint for symbol in described.symbols if symbol.hint is not None}
    return {key: _nodes(graph, key, parts[key], origins, hints) for key, graph in graphs.items()}


def _nodes(graph: schema.Graph, key: str, part: Part, origins: schema.Origins | None, hints: Mapping[str, int]) -> GraphNodes:
    count = len(graph.nodes)
    sizes = {name: _elements(value, hints) for name, value in zip(graph.inputs, graph.input_values, strict=True)}
    weights = []
    for node in graph.nodes:
        sizes[node.name] = _elements(node.value, hints)
        largest = max([sizes[node.name], *(sizes.get(name, 0.0) for name in references(node))])
        free = node.op.startswith("builtin.") or node.op.rpartition(".")[0] in _FREE
        weights.append(0.0 if free else largest)
    pairs = zip(modules_of(origins, key, count), lines_of(origins, key, count), strict=True)
    return GraphNodes(part, [Origin(*pair) for pair in pairs], [node.op for node in graph.nodes], weights)


def _elements(value: schema.Value, hints: Mapping[str, int]) -> float:
    if not isinstance(value, schema.TensorValue):
        return 0.0
    try:
        return float(math.prod(expressions.evaluate(size, hints) for size in value.shape))
    except (AotpackError, KeyError):  # a size that depends on data
        return 1.0


def saved_by_origin(bundle: Bundle, method: str) -> list[tuple[Origin, int]]:
    """Bytes that the forward saves for the backward, by the origin of what is saved, at the sizes of the example.

    Tensors that the caller or the model holds anyway are not among them.
    """
    found = step_memory(bundle, method, views(bundle, method)).saved
    return [(Origin(tensor.module, tensor.line), tensor.size) for tensor in found if tensor.size]

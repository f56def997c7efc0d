"""Subgraphs: which operators take them, and how many values they take and return (spec/control-flow.md).

Subgraphs are part of their parent's document. They cannot form a cycle or use a name of the parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from . import schema
from .schema import GraphArg

MAX_DEPTH: Final = 64
"""Of subgraphs: no program nests as deeply."""


class Use(NamedTuple):
    """A subgraph as an operator uses it.

    It gets ``inputs`` values. With None as ``outputs`` it may return any number.
    """

    name: str
    inputs: int
    outputs: int | None = None
    at_least: int = 0


def all_nodes(graph: schema.Graph) -> Iterator[schema.Node]:
    """The nodes of a graph and of its subgraphs."""
    yield from graph.nodes
    for sub in graph.subgraphs.values():
        yield from all_nodes(sub)


def output_values(graph: schema.Graph) -> list[schema.Value | None]:
    """The recorded types of a graph's outputs; None for an output that is not a value."""
    values = dict(zip(graph.inputs, graph.input_values, strict=True)) | {node.name: node.value for node in graph.nodes}
    return [values[output.name] if isinstance(output, schema.ValueRef) else None for output in graph.outputs]


def is_too_deep(graph: schema.Graph) -> bool:
    """Whether subgraphs nest more than ``MAX_DEPTH`` deep (G8)."""
    level = [graph]
    for _ in range(MAX_DEPTH + 1):
        level = [sub for parent in level for sub in parent.subgraphs.values()]
    return bool(level)


def problems(node: schema.Node, graph: schema.Graph) -> Iterator[str]:
    """Violations of rule G7 in a node of ``graph`` whose subgraphs exist (G4)."""
    if node.op not in OPERATORS:
        # An unknown higher-order operator belongs to a later version. The loader that runs the
        # graph refuses it by name.
        if not node.op.startswith("higher_order.") and _graphs_in([*node.args, *node.kwargs.values()]):
            yield f"{node.op} takes no subgraph"
        return
    expected = _uses(node, graph)
    if expected is None or len(expected) != _graphs_in(node.args) or node.kwargs:
        yield f"the arguments of {node.op} are not of its form"
        return
    for use in expected:
        sub = graph.subgraphs[use.name]
        if len(sub.inputs) != use.inputs:
            yield f"{node.op} gives the subgraph {use.name!r} {use.inputs} values, it takes {len(sub.inputs)}"
        count = len(sub.outputs)
        if count < use.at_least or use.outputs not in (None, count):
            yield f"{node.op} cannot use the {count} results of the subgraph {use.name!r}"


OPERATORS: Final = frozenset(
    f"higher_order.{name}"
    for name in ("cond", "while_loop", "while_loop_stack_output", "scan", "map_impl", "invoke_subgraph", "flex_attention")
)
"""The higher-order operators of this version of the format."""


def single_result(node: schema.Node) -> list[str]:
    """Subgraphs of ``node`` that return one value. torch expects the value itself rather than a tuple."""
    match node.op, node.args:
        case (("higher_order.while_loop" | "higher_order.while_loop_stack_output"), [GraphArg() as condition, *_]):
            return [condition.name]
        case "higher_order.flex_attention", [_, _, _, GraphArg() as score, [*_, GraphArg() as mask], *_]:
            return [score.name, mask.name]
    return []


def _uses(node: schema.Node, graph: schema.Graph) -> list[Use] | None:
    """The subgraphs of a node with a known operator; None if its arguments have another form."""
    match node.op.removeprefix("higher_order."), node.args:
        case "cond", [_, GraphArg() as true, GraphArg() as false, list() as operands]:
            outputs = len(graph.subgraphs[true.name].outputs)
            return [Use(branch.name, len(operands), outputs) for branch in (true, false)]
        case (
            "while_loop" | "while_loop_stack_output",
            [GraphArg() as condition, GraphArg() as body, list() as carried, list() as additional],
        ):
            inputs = len(carried) + len(additional)
            return [Use(condition.name, inputs, 1), Use(body.name, inputs, len(carried))]
        case "scan", [GraphArg() as combine, list() as initial, list() as xs, list() as additional] if xs:
            return [Use(combine.name, len(initial) + len(xs) + len(additional), at_least=len(initial))]
        case "map_impl", [GraphArg() as body, list() as xs, list() as additional] if xs:
            return [Use(body.name, len(xs) + len(additional))]
        case "invoke_subgraph", [GraphArg() as body, str() | None, *operands]:
            return [Use(body.name, len(operands))]
        case "flex_attention", [_, _, _, GraphArg() as score, [*_, GraphArg() as mask], _, list(), list() as s, list() as m]:
            return [Use(score.name, 5 + len(s), 1), Use(mask.name, 4 + len(m), 1)]
    return None


def _graphs_in(args: Iterable[object]) -> int:
    return sum(_graphs_in(arg) if isinstance(arg, list) else int(isinstance(arg, GraphArg)) for arg in args)

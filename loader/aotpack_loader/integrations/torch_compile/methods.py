"""The methods of a bundle as operators: what a trace needs to know, and what keeps a method from being one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from ...archive.bundle import Bundle
from ...devices.literals import literal
from ...errors import AotpackError
from ...format import schema
from ...format.traits import Trait, traits_of, unsupported
from ...text import shown

SUPPORTED: Final = frozenset(
    {Trait.AUTOCAST, Trait.DERIVATIVE, Trait.FROM_START, Trait.INTEGER_ARGUMENTS, Trait.NESTED_ARGUMENTS}
)
"""What a method that is called as operators may have."""


class MethodSignature(NamedTuple):
    """One method as operators: what the trace needs, and the types of the graphs' outputs."""

    obstacle: str
    names: tuple[str, ...]
    mutations: tuple[tuple[int, int], ...]
    results: tuple[tuple[str, Any], ...]
    tree: Any
    outputs: list[Any]
    gradients: list[Any]


@cache
def methods_of(path: str, digest: str, target: str) -> dict[str, MethodSignature]:
    """The methods of a target of the bundle at ``path``, which must still be the one that was loaded."""
    bundle = Bundle.open(path)
    try:
        if bundle.digest != digest:
            raise AotpackError("The file has changed.")
        return {name: _signature(bundle, method) for name, method in bundle.for_target(target).program.methods.items()}
    finally:
        bundle.close()


def _signature(bundle: Bundle, method: schema.Method) -> MethodSignature:
    forward = bundle.graph(method.forward)
    backward = None if method.backward is None else bundle.graph(method.backward.graph)
    outputs, gradients = _values(forward), [] if backward is None else _values(backward)
    names = tuple(primal.name for primal in method.primals if isinstance(primal, (schema.ParameterPrimal, schema.BufferPrimal)))
    entries = {entry.name: entry for entry in bundle.program.state}
    obstacle = _obstacle(method, entries, outputs, gradients)
    if obstacle:
        return MethodSignature(obstacle, names, (), (), None, outputs, gradients)
    mutations = tuple((names.index(_name(method, one.primal)), one.output) for one in method.mutations)
    results = tuple(_result(method, names, result) for result in method.results)
    return MethodSignature("", names, mutations, results, _tree(method.outputs), outputs, gradients)


def _obstacle(
    method: schema.Method, entries: Mapping[str, schema.StateEntry], outputs: Sequence[Any], gradients: Sequence[Any]
) -> str:
    """What operators without side effects cannot do for a method; empty if there is nothing."""
    if reason := unsupported(traits_of(method, entries), SUPPORTED):
        return reason
    if not all(isinstance(value, schema.TensorValue) for value in [*outputs, *gradients]):
        return "its graphs have results that are no tensors"
    for one in method.mutations:
        entry, value = entries[_name(method, one.primal)], outputs[one.output]
        if (entry.shape, entry.dtype) != (value.shape, value.dtype):
            return f"it writes a tensor of another shape or dtype to {shown(entry.name)}"
    return ""


def _name(method: schema.Method, primal: int) -> str:
    name: str = method.primals[primal].name  # type: ignore[union-attr]
    return name


def _values(graph: schema.Graph) -> list[Any]:
    known: dict[str, Any] = dict(zip(graph.inputs, graph.input_values, strict=True))
    known |= {node.name: node.value for node in graph.nodes}
    return [known[out.name] if isinstance(out, schema.ValueRef) else None for out in graph.outputs]


def _result(method: schema.Method, names: Sequence[str], result: Any) -> tuple[str, Any]:
    if isinstance(result, schema.FreshResult):
        return "output", result.output
    if isinstance(result, schema.InputResult):
        return "state", names.index(_name(method, result.primal))
    return "constant", literal(result.value)


def _tree(tree: Any) -> Any:
    if isinstance(tree, schema.LeafNode):
        return ("leaf",)
    items = tuple(map(_tree, tree.items))
    if isinstance(tree, schema.DictNode):
        return "dict", tuple(zip(tree.keys, items, strict=True))
    return "tuple" if isinstance(tree, schema.TupleNode) else "list", items

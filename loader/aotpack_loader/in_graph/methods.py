"""The methods of a bundle as operators: what a trace needs to know, and what keeps a method from being one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from ..archive.bundle import Bundle
from ..devices.literals import literal
from ..errors import AotpackError
from ..format import schema


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
def methods_of(path: str, digest: str) -> dict[str, MethodSignature]:
    """The methods of the bundle at ``path``, which must still be the one that was loaded."""
    bundle = Bundle.open(path)
    try:
        if bundle.digest != digest:
            raise AotpackError("The file has changed.")
        return {name: _signature(bundle, method) for name, method in bundle.program.methods.items()}
    finally:
        bundle.close()


def _signature(bundle: Bundle, method: schema.Method) -> MethodSignature:
    forward = bundle.graph(method.forward)
    backward = None if method.backward is None else bundle.graph(method.backward.graph)
    outputs, gradients = _values(forward), [] if backward is None else _values(backward)
    names = tuple(primal.name for primal in method.primals if isinstance(primal, (schema.ParameterPrimal, schema.BufferPrimal)))
    obstacle = _obstacle(method, [*outputs, *gradients])
    if obstacle:
        return MethodSignature(obstacle, names, (), (), None, outputs, gradients)
    mutations = tuple((names.index(_name(method, one.primal)), one.output) for one in method.mutations)
    results = tuple(_result(method, names, result) for result in method.results)
    return MethodSignature("", names, mutations, results, _tree(method.outputs), outputs, gradients)


def _obstacle(method: schema.Method, values: Sequence[Any]) -> str:
    """What operators without side effects cannot do for a method; empty if there is nothing."""
    plain = (schema.ParameterPrimal, schema.BufferPrimal, schema.ConstantPrimal, schema.InputPrimal)
    on_buffers = all(isinstance(method.primals[one.primal], schema.BufferPrimal) for one in method.mutations)
    simple = all(one.kind == "data" and not one.requires_grad for one in method.mutations)
    kinds = (schema.FreshResult, schema.ConstantResult, schema.InputResult)
    on_state = all(
        not isinstance(method.primals[result.primal], schema.InputPrimal)
        for result in method.results
        if isinstance(result, schema.InputResult)
    )
    reasons = {
        "writes to its arguments": not on_buffers,
        "changes more of its buffers than their values": not simple,
        "returns views, arguments, or numbers": not on_state or not all(isinstance(result, kinds) for result in method.results),
        "returns sparse tensors": any(getattr(result, "sparse_dim", None) is not None for result in method.results),
        "returns other containers than tuples, lists and dictionaries": not _is_plain(method.outputs),
        "changes containers of its caller": bool(method.updates),
        "compares its arguments with `is`": bool(method.identical) or method.distinct,
        "takes arguments that share memory": not all(isinstance(primal, plain) for primal in method.primals),
        "calls requires_grad_() on an argument": any(getattr(leaf, "sets_requires_grad", False) for leaf in method.leaves),
        "has sizes that depend on data": bool(method.output_symbols),
        "has results that are no tensors": not all(isinstance(value, schema.TensorValue) for value in values),
        "has sparse gradients": method.backward is not None and bool(method.backward.sparse),
        "computes gradients although its caller has disabled them": method.backward is not None
        and not any(mode.grad for mode in method.serves),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


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


def _is_plain(tree: Any) -> bool:
    if isinstance(tree, schema.LeafNode):
        return True
    fits = isinstance(tree, schema.ListNode) or (isinstance(tree, schema.TupleNode) and not tree.size)
    fits = fits or (isinstance(tree, schema.DictNode) and not tree.ordered)
    return fits and all(map(_is_plain, tree.items))


def _tree(tree: Any) -> Any:
    if isinstance(tree, schema.LeafNode):
        return ("leaf",)
    items = tuple(map(_tree, tree.items))
    if isinstance(tree, schema.DictNode):
        return "dict", tuple(zip(tree.keys, items, strict=True))
    return "tuple" if isinstance(tree, schema.TupleNode) else "list", items

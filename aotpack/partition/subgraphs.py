"""Rewrites subgraphs of control flow into the format's form: functional, with an operand for every
tensor they use.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from aotpack_loader.errors import Problem, UnsupportedError

from .._torch.api.nodes import without_views
from .._torch.tracing import partitioner
from ..graph import source_line

_HIGHER_ORDER = torch.ops.higher_order


def make_self_contained(module: GraphModule) -> None:
    """Rewrite the higher-order calls of a graph and of its subgraphs, in place.

    Raises:
        UnsupportedError: a subgraph writes in a way that the format cannot express; names the
            user's source line.
    """
    for call in _calls(module):
        if call.target is _HIGHER_ORDER.auto_functionalized_v2 and _is_higher_order(call.args[0]):
            _make_functional(module, call)
        elif partitioner.is_plain_call(call.target) and not any(isinstance(arg, (list, tuple)) for arg in call.args):
            _name_plainly(call)
    for call in _calls(module):
        for _, region in _subgraphs(module, call.args):
            make_self_contained(region)
        _hoist_constants(module, call)
        _separate_operands(module, call)
    for node in module.graph.find_nodes(op="get_attr"):
        if not node.users:
            module.graph.erase_node(node)
    module.recompile()


def drop_options(module: GraphModule) -> None:
    """Drop the compiler options of calls that only mark a subgraph.

    They are objects, which a forward cannot save.
    """
    for call in _calls(module):
        if partitioner.is_plain_call(call.target):
            options = [value for value in call.kwargs.values() if isinstance(value, Node)]
            call.kwargs = {}
            for node in options:
                if not node.users:
                    module.graph.erase_node(node)
        for _, region in _subgraphs(module, call.args):
            drop_options(region)


def _calls(module: GraphModule) -> list[Node]:
    return [node for node in module.graph.nodes if _is_higher_order(node.target)]


def _name_plainly(call: Node) -> None:
    """Replace an operator that only marks a subgraph for a compiler by a call of that subgraph."""
    marker: Any = call.target
    call.args = (call.args[0], marker.name(), *call.args[1:])
    call.target = _HIGHER_ORDER.invoke_subgraph


def _is_higher_order(target: Any) -> bool:
    return isinstance(target, torch._ops.HigherOrderOperator)


def _subgraphs(module: GraphModule, args: Iterable[Any]) -> list[tuple[Node, GraphModule]]:
    """The subgraphs among the arguments of a call, each with the ``get_attr`` node that reads it."""
    found = []
    for arg in args:
        if isinstance(arg, (list, tuple)):
            found += _subgraphs(module, arg)
        elif isinstance(arg, Node) and arg.op == "get_attr":
            value = getattr(module, str(arg.target), None)
            found += [(arg, value)] if isinstance(value, GraphModule) else []
    return found


# ------------------------------------------------------------------ writes


def _make_functional(module: GraphModule, call: Node) -> None:
    """Replace subgraphs that write to their operands by subgraphs that return the operands' new
    values after their results.
    """
    kind: Any = call.args[0]
    arguments: dict[str, Any] = dict(call.kwargs)
    bases = arguments.pop("_all_bases")
    arguments.pop("_op_schema")
    index = {match[1]: arguments.pop(key) for key in list(arguments) if (match := re.fullmatch(r"_(.+)_base_index", key))}
    written = sorted(index, key=lambda name: -1 if index[name] is None else index[name])
    if any(name.startswith("_") for name in arguments) or [index[name] for name in written] != [*range(len(bases))]:
        raise _unsupported(call, kind, "writes to a view of its operand, or to an operand that is passed twice")
    arguments |= {name: bases[index[name]] for name in written}

    def numbered(prefix: str) -> list[str]:
        found = [name for name in arguments if re.fullmatch(rf"{prefix}\d+", name)]
        return sorted(found, key=lambda name: int(name.removeprefix(prefix)))

    def values(names: Sequence[str]) -> tuple[Any, ...]:
        return tuple(arguments[name] for name in names)

    with module.graph.inserting_before(call):
        match kind:
            case _HIGHER_ORDER.cond:
                operands = numbered("operand")
                branches = [_writing(module, branch, operands, written) for branch in values(["true_fn", "false_fn"])]
                args: tuple[Any, ...] = (arguments["pred"], *branches, values(operands))
            case _HIGHER_ORDER.invoke_subgraph:
                operands = numbered("arg")
                args = (_writing(module, arguments["subgraph"], operands, written), arguments["identifier"], *values(operands))
            case _HIGHER_ORDER.while_loop if {*written} <= {*numbered("additional_input")}:
                before = numbered("carried_input") + numbered("additional_input")
                carried = [*numbered("carried_input"), *written]
                kept = [name for name in before if name not in carried]
                body = _writing(module, arguments["body_fn"], before, written)
                turns = [_reordered(module, region, before, carried + kept) for region in (arguments["cond_fn"], body)]
                args = (*turns, values(carried), values(kept))
            case _:
                raise _unsupported(call, kind, "writes to its operand")
        replacement = module.graph.call_function(kind, args)
    replacement.meta = copy.copy(call.meta)
    call.replace_all_uses_with(replacement)
    module.graph.erase_node(call)


def _unsupported(call: Node, kind: Any, what: str) -> UnsupportedError:
    problem = Problem(source_line(call) or call.name, f"a subgraph of {kind.name()} {what}")
    return UnsupportedError("The traced graph contains something that a bundle cannot express.", [problem])


def _writing(module: GraphModule, attribute: Node, operands: Sequence[str], written: Sequence[str]) -> Node:
    """A copy of a subgraph that returns the new values of the operands ``written`` after its
    results.
    """
    region = _copied(getattr(module, str(attribute.target)))
    graph, inputs = region.graph, region.graph.find_nodes(op="placeholder")
    latest: dict[str, Any] = dict(zip(operands, inputs, strict=True))
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        target, new = node.args
        latest[operands[inputs.index(target)]] = new
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    output = graph.output_node()
    results: list[Any] = [*output.args[0]]  # type: ignore[misc]
    for name in written:
        value = latest[name]
        if value in inputs:  # not written in this subgraph: the caller must not get its own operand back
            with graph.inserting_before(output):
                untouched, value = value, graph.call_function(torch.ops.aten.clone.default, (value,))
            value.meta = copy.copy(untouched.meta)
        results.append(value)
    output.args = (tuple(results),)
    region.recompile()
    return _attribute(module, f"{attribute.target}_writes", region)


def _reordered(module: GraphModule, attribute: Node, before: Sequence[str], after: Sequence[str]) -> Node:
    """A copy of a subgraph with its inputs in another order."""
    region = _copied(getattr(module, str(attribute.target)))
    inputs = dict(zip(before, region.graph.find_nodes(op="placeholder"), strict=True))
    first = next(node for node in region.graph.nodes if node.op != "placeholder")
    for name in after:
        first.prepend(inputs[name])
    region.recompile()
    return _attribute(module, f"{attribute.target}_ordered", region)


def _copied(region: GraphModule) -> GraphModule:
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(region.graph, {}))
    return GraphModule(region, graph)


def _attribute(module: GraphModule, name: str, value: GraphModule) -> Node:
    while hasattr(module, name):
        name = f"{name}_"
    module.register_module(name, value)
    return module.graph.get_attr(name)


# ------------------------------------------------------------------ operands

_WHOLE: dict[Any, tuple[int, ...]] = {
    _HIGHER_ORDER.cond: (3,),
    _HIGHER_ORDER.while_loop: (2, 3),
    _HIGHER_ORDER.while_loop_stack_output: (2, 3),
    _HIGHER_ORDER.scan: (1, 3),
    _HIGHER_ORDER.map_impl: (2,),
}
"""Indices of the arguments whose operands a subgraph gets whole, not in slices. The last one holds the operands
which are the same in every run of a subgraph.
"""


def _separate_operands(module: GraphModule, call: Node) -> None:
    """Copy operands that share memory with an earlier one.

    Torch refuses them. Equal operands are often one node, such as the zeros with which two gradients begin.
    """
    seen: set[Node] = set()

    def separate(operand: Any) -> Any:
        if not isinstance(operand, Node) or not isinstance(value := operand.meta.get("val"), torch.Tensor):
            return operand
        owner = without_views(operand)
        if owner in seen:
            with module.graph.inserting_before(call):
                operand = module.graph.call_function(torch.ops.aten.clone.default, (operand,))
            operand.meta = {"val": value.clone()}
        seen.add(owner)
        return operand

    for at in _WHOLE.get(call.target, ()):
        operands: Any = call.args[at]
        call.update_arg(at, type(operands)(map(separate, operands)))


# ------------------------------------------------------------------ constants


def _hoist_constants(module: GraphModule, call: Node) -> None:
    """Turn tensors that the call's subgraphs close over into operands; the calling graph closes
    over them instead.
    """
    attributes = _subgraphs(module, call.args)
    constants = [
        (region, node)
        for _, region in attributes
        for node in region.graph.find_nodes(op="get_attr")
        if not _is_graph(region, node)
    ]
    if not constants or (call.target not in _WHOLE and call.target is not _HIGHER_ORDER.invoke_subgraph):
        return
    copies: dict[GraphModule, GraphModule] = {}
    for attribute, region in attributes:  # the region may have other callers
        copies[region] = _copied(region)
        with module.graph.inserting_before(call):
            call.replace_input_with(attribute, _attribute(module, f"{attribute.target}_given", copies[region]))
    operands: list[Node] = []
    for owner, node in constants:
        tensor = getattr(owner, str(node.target))
        with module.graph.inserting_before(call):
            operand = _constant(module, f"constant_of_{call.name}", tensor)
        operand.meta = {"val": node.meta.get("val", tensor)}
        operands.append(operand)
        for region in copies.values():
            graph = region.graph
            with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
                placeholder = graph.placeholder(f"constant_{len(operands)}")
            placeholder.meta = dict(operand.meta)
            if region is copies[owner]:
                twin = next(twin for twin in graph.find_nodes(op="get_attr") if twin.name == node.name)
                twin.replace_all_uses_with(placeholder)
                graph.erase_node(twin)
            region.recompile()
    if call.target not in _WHOLE:
        call.args = (*call.args, *operands)
    else:
        at = _WHOLE[call.target][-1]
        call.args = (*call.args[:at], [*call.args[at], *operands], *call.args[at + 1 :])  # type: ignore[misc]


def _constant(module: GraphModule, name: str, tensor: torch.Tensor) -> Node:
    while hasattr(module, name):
        name = f"{name}_"
    module.register_buffer(name, tensor)
    return module.graph.get_attr(name)


def _is_graph(region: GraphModule, node: Node) -> bool:
    return isinstance(getattr(region, str(node.target), None), GraphModule)

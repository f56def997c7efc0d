"""Partitions a joint graph into forward and backward graphs that follow the bundle's calling
convention.

AOTAutograd's own convention returns inputs, aliases and constants from the forward graph. Here a
graph returns only what it computes: the loader keeps saved primals and replays aliases, and
constants are data. Compiled code therefore never copies a parameter only to save it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule, Node

from aotpack_loader.errors import BuildError, Problem

from .._torch.api.torch_types import StorageWeakRef
from .._torch.tracing import aot_autograd
from .._torch.tracing.partitioner import Split, renumber_calls, split_regions
from .._torch.tracing.partitioner import partition as torch_partition
from ..graph import views
from . import effects, rng, subgraphs
from .copied_views import restore_views
from .one_hot import replace_sums_of_one
from .stacked import stack_parts


@dataclass(frozen=True)
class Partitioned:
    """The forward and backward graphs that result from a split. Whoever edits a graph returns a new value.

    ``primals`` are the forward's inputs. ``saved`` pairs each saved value of the forward, a tensor
    or an integer, with the backward's placeholder for it. ``tangents`` are the backward's remaining
    placeholders.

    ``chains`` names the view chain of each forward output, as it was before equal views were
    merged. Two outputs are the same object if their chains are equal.
    """

    forward: GraphModule
    backward: GraphModule | None
    primals: Sequence[Node]
    forward_outputs: Sequence[object]
    saved: Sequence[tuple[Node, Node]]
    tangents: Sequence[Node]
    gradients: Sequence[object]
    chains: Sequence[views.Chain]


def partition(
    joint: aot_autograd.Joint, *, partitioner: str, memory_budget: float | None, exact_random: bool = False
) -> Partitioned:
    """Split ``joint``; without autograd the joint graph is the forward.

    ``memory_budget`` in 0..1: the share of activation memory that may be saved (null: torch's
    default, 1). ``exact_random``: every random operator stays in its pass, in the model's order,
    even if unused.

    Raises:
        UnsupportedError: effects of higher-order operators.
    """
    subgraphs.drop_options(joint.graph_module)
    pinned = rng.pin(joint) if exact_random else rng.Pinned()
    if not joint.needs_autograd:
        forward = joint.graph_module
        _cut_outputs(forward, output_args(forward)[joint.tokens :], joint.tokens)
        subgraphs.make_self_contained(forward)
        restore_views(forward)
        return Partitioned(forward, None, _inputs(forward), output_args(forward), [], [], [], _chains(forward))
    stack_parts(joint.graph_module)
    replace_sums_of_one(joint.graph_module)
    chains = _chains(joint.graph_module)[joint.outputs.forward_values]
    try:
        forward, backward = torch_partition(
            joint, partitioner=partitioner, memory_budget=memory_budget, prepare=_split_regions, added=pinned.forward
        )
    except RuntimeError as error:  # torch's: about values that it can neither save nor recompute
        problem = Problem(partitioner, str(error).strip().partition("\n\n")[0])
        raise BuildError("torch could not split the joint graph into a forward and a backward.", [problem]) from error
    if exact_random:
        rng.keep_order(joint, forward, backward)
    outputs, own = output_args(forward), joint.outputs
    saved = outputs[own.forward_values.stop + pinned.forward :]
    _cut_outputs(forward, outputs[own.forward_values] + saved, joint.tokens)
    _cut_outputs(backward, output_args(backward)[own.of_backward.backward_values], 0)
    for half in (forward, backward):
        subgraphs.make_self_contained(half)
        restore_views(half)
    return _halves(forward, backward, chains)


def _halves(forward: GraphModule, backward: GraphModule, chains: list[views.Chain]) -> Partitioned:
    """The result of torch's partitioner for a joint graph whose forward outputs have the view
    chains ``chains``.
    """
    count = len(chains)
    outputs = output_args(forward)
    saved = [value for value in outputs[count:] if isinstance(value, Node)]
    symbols = [value for value in saved if not isinstance(value.meta["val"], torch.Tensor)]
    tensors = [value for value in saved if isinstance(value.meta["val"], torch.Tensor)]
    placeholders = _inputs(backward)
    pairs = list(zip([*symbols, *tensors], placeholders, strict=False))
    for _, placeholder in (unused := [pair for pair in pairs if pair[0] in symbols and not pair[1].users]):
        backward.graph.erase_node(placeholder)
    tangents = placeholders[len(pairs) :]
    pairs = _compute_numbers(backward, [pair for pair in pairs if pair not in unused])
    pairs += rng.share_state(forward, backward) + _sizes_to_read(forward, backward)
    kept = _recompute_views_of_inputs(backward, pairs)
    order_placeholders(backward, kept, tangents)
    return Partitioned(forward, backward, _inputs(forward), outputs[:count], kept, tangents, output_args(backward), chains)


def _compute_numbers(backward: GraphModule, saved: Sequence[tuple[Node, Node]]) -> list[tuple[Node, Node]]:
    """Save the sizes that a number is computed from, and compute the number in the backward. Returns what is saved.

    The number may be negative. Compiled code takes an integer as the size of a tensor, which is not.
    """
    graph = backward.graph
    first = next(node for node in graph.nodes if node.op != "placeholder")
    computed = [pair for pair in saved if _is_computed(pair[0])]
    copies = {value: placeholder for value, placeholder in saved if not _is_computed(value)}
    added: list[tuple[Node, Node]] = []

    def copied(value: Node) -> Node:
        if value not in copies and _is_computed(value):
            with graph.inserting_before(first):
                copies[value] = graph.node_copy(value, copied)
        elif value not in copies:
            with graph.inserting_before(next(iter(graph.nodes))):
                copies[value] = graph.placeholder(f"{value.name}_saved")
            copies[value].meta = dict(value.meta)
            added.append((value, copies[value]))
        return copies[value]

    for value, placeholder in computed:
        placeholder.replace_all_uses_with(copied(value))
        graph.erase_node(placeholder)
    return [pair for pair in saved if pair not in computed] + added


def _is_computed(value: Node) -> bool:
    """Whether a node computes a number from numbers alone."""
    nodes = [value, *value.all_input_nodes]
    return len(nodes) > 1 and all(isinstance(node.meta.get("val"), int | float | _SYMBOLIC) for node in nodes)


def _sizes_to_read(forward: GraphModule, backward: GraphModule) -> list[tuple[Node, Node]]:
    """Save sizes from which sizes of the backward's inputs are computed (half of one, for example),
    if no input has them.

    Returns pairs of the forward's value and the backward's placeholder. Compiled code cannot solve
    equations for them.
    """
    given = [size.node.expr for node in _inputs(backward) for size in _numbers(node.meta.get("val"))]
    missing = {symbol for size in given for symbol in size.free_symbols} - set(given)
    pairs = []
    primals = _inputs(forward)
    tensors = [node for node in primals if isinstance(node.meta.get("val"), torch.Tensor)]
    for primal, dim, size in [(node, *each) for node in tensors for each in enumerate(node.meta["val"].shape)]:
        if isinstance(size, torch.SymInt) and size.node.expr in missing:
            missing.remove(size.node.expr)
            with forward.graph.inserting_after(primals[-1]):
                value = forward.graph.call_function(torch.ops.aten.sym_size.int, (primal, dim))
            with backward.graph.inserting_before(_inputs(backward)[0]):
                placeholder = backward.graph.placeholder(f"{value.name}_of_{primal.name}")
            value.meta["val"] = placeholder.meta["val"] = size
            pairs.append((value, placeholder))
    return pairs


_SYMBOLIC = torch.SymInt | torch.SymFloat | torch.SymBool


def _numbers(value: Any) -> list[torch.SymInt]:
    """The symbolic integers of a number or of a tensor's sizes."""
    sizes: Any = value.shape if isinstance(value, torch.Tensor) else (value,)
    return [size for size in sizes if isinstance(size, torch.SymInt)]


def _cut_outputs(module: GraphModule, outputs: list[object], tokens: int) -> None:
    """Make a graph return ``outputs``, and remove effect tokens: the first ``tokens`` inputs, and
    those named as tokens.
    """
    module.graph.output_node().args = (tuple(outputs),)  # type: ignore[arg-type]
    effects.unwrap(module)
    placeholders = module.graph.find_nodes(op="placeholder")
    for node in [*placeholders[:tokens], *(node for node in placeholders[tokens:] if node.name.startswith("tangents_token"))]:
        module.graph.erase_node(node)


def _inputs(module: GraphModule) -> list[Node]:
    return module.graph.find_nodes(op="placeholder")


def _chains(module: GraphModule) -> list[views.Chain]:
    outputs = pytree.tree_leaves(module.graph.output_node().args)
    return [views.chain_of_names(value) if isinstance(value, Node) else () for value in outputs]


def output_args(module: GraphModule) -> list[object]:
    """The outputs of a graph."""
    return list(module.graph.output_node().args[0])  # type: ignore[arg-type]


def propagate_dependencies(module: GraphModule, reach: dict[Node, frozenset[int]]) -> None:
    """Complete ``reach``, which has numbers for some nodes: each other node gets all numbers of its
    inputs.
    """
    for node in module.graph.nodes:
        if node not in reach:
            reach[node] = frozenset().union(*(reach[source] for source in node.all_input_nodes))


def set_outputs(module: GraphModule, outputs: list[object]) -> None:
    """Make a graph return ``outputs``, and remove unused nodes."""
    module.graph.output_node().args = (tuple(outputs),)  # type: ignore[arg-type]
    module.graph.eliminate_dead_code(is_impure_node=_is_impure)
    module.graph.lint()
    module.recompile()


def _is_impure(node: Node) -> bool:
    """Whether an unused node stays: inputs (the calling convention), effects, assertions, and
    pinned random operators.
    """
    return (
        node.op in ("placeholder", "output")
        or rng.KEPT in node.meta
        or aot_autograd.has_effect(node.target)
        or node.target in _ASSERTIONS
    )


_ASSERTIONS = (torch.ops.aten._assert_scalar.default, torch.ops.aten._assert_async.msg, torch.ops.aten._assert_async.default)
"""Checks of a model while it runs (``torch._check``): they fail in a bundle as in eager."""


def _recompute_views_of_inputs(backward: GraphModule, saved: Sequence[tuple[Node, Node]]) -> list[tuple[Node, Node]]:
    """Save the primal instead of a view of it, and recompute the view in the backward. Returns what is saved.

    The primal is alive anyway. If it is saved, autograd's version counter detects an in-place
    change, as in eager. And the compiled forward need not return an alias.
    """
    by_name = {placeholder.name for _, placeholder in saved}
    saved_as = dict(saved)
    found = list(saved)
    graph = backward.graph
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for position, (value, placeholder) in enumerate(saved):
        primal = views.root(value)
        if primal is value or primal.op != "placeholder" or not _is_static_chain(primal, value):
            continue
        with graph.inserting_before(placeholder):
            if primal in saved_as:
                source = saved_as[primal]
            else:
                source = graph.placeholder(_unused(primal.name, by_name))
                source.meta = dict(primal.meta)
                saved_as[primal] = source
                by_name.add(source.name)
        with graph.inserting_before(first):
            replacement = _replay(graph, primal, value, source)
        placeholder.replace_all_uses_with(replacement)
        graph.erase_node(placeholder)
        found[position] = (primal, source)
    return list(dict.fromkeys(found))


def _is_static_chain(base: Node, alias: Node) -> bool:
    """Whether every view from ``base`` to ``alias`` has constant arguments."""
    node = alias
    while node is not base:
        view = node.args[0] if node.target is operator.getitem else node
        if len(view.all_input_nodes) != 1:  # type: ignore[union-attr]
            return False
        node = views.parent(node)  # type: ignore[assignment]
    return True


def _replay(graph: torch.fx.Graph, base: Node, alias: Node, source: Node) -> Node:
    if alias is base:
        return source
    if alias.target is operator.getitem:
        view: Node = alias.args[0]  # type: ignore[assignment]
        inner = _replay(graph, base, view.args[0], source)  # type: ignore[arg-type]
        several = graph.node_copy(view, lambda node: inner if node is view.args[0] else node)
        return graph.node_copy(alias, lambda node: several if node is view else node)
    inner = _replay(graph, base, alias.args[0], source)  # type: ignore[arg-type]
    return graph.node_copy(alias, lambda _: inner)


def _split_regions(module: GraphModule, split: Split) -> None:
    """Split nested compile regions, innermost first; a region's caller saves the inputs that the
    region saves.
    """

    def of_region(
        joint: GraphModule, inputs: object, *, num_fwd_outputs: int, **options: object
    ) -> tuple[GraphModule, GraphModule]:
        renumber_calls(joint)
        _split_regions(joint, split)
        forward, backward = split(joint, inputs, num_fwd_outputs=num_fwd_outputs, **options)
        parts = _halves(forward, backward, [()] * num_fwd_outputs)
        saved = [_copied_view(value) for value, _ in parts.saved]
        symbols = [value for value in saved if not isinstance(value.meta["val"], torch.Tensor)]
        tensors = [value for value in saved if value not in symbols]
        set_outputs(forward, [*parts.forward_outputs, *tensors, *symbols])
        return forward, backward

    split_regions(module, of_region)
    _return_no_operands(module)


def _copied_view(value: Node) -> Node:
    """Copy a view, with dynamic sizes, of a region's input: the region's caller could not know that
    it is a view.
    """
    if value.op == "placeholder" or views.root(value).op != "placeholder" or not isinstance(value.meta["val"], torch.Tensor):
        return value
    with value.graph.inserting_after(value):
        copied = value.graph.call_function(torch.ops.aten.clone.default, (value,))
    copied.meta = {**value.meta, "val": value.meta["val"].clone()}
    return copied


def _return_no_operands(module: GraphModule) -> None:
    """Make callers use their own operand if a region returns an input, and read results that it
    returns twice only once.
    """
    calls: dict[str, list[Any]] = {}
    for call in module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph):
        calls.setdefault(call.args[0].target, []).append(call)
    for name, callers in calls.items():
        region: Any = module.get_submodule(name)
        inputs, results = region.graph.find_nodes(op="placeholder"), output_args(region)
        kept: list[Any] = list(dict.fromkeys(result for result in results if result not in inputs))
        for call in callers:
            items: dict[Node, Node] = {}
            for item in list(call.users):
                result: Any = results[item.args[1]]
                if result in inputs:
                    item.replace_all_uses_with(call.args[2 + inputs.index(result)])
                elif result in items:
                    item.replace_all_uses_with(items[result])
                else:
                    items[result] = item
                    item.args = (call, kept.index(result))
                    call.append(item)
                    continue
                module.graph.erase_node(item)
            _mark_shared_values(items)
            call.meta["val"] = tuple(None if result is None else result.meta["val"] for result in kept)
        set_outputs(region, kept)
    module.recompile()


def _mark_shared_values(items: Mapping[Any, Node]) -> None:
    """Let results of a call that are views of each other share their storage in the trace too."""
    sharing: dict[Any, list[Any]] = {}
    for result in items:
        if isinstance(result, Node) and isinstance(result.meta["val"], torch.Tensor):
            sharing.setdefault(StorageWeakRef(result.meta["val"].untyped_storage()), []).append(result)
    for result in (result for results in sharing.values() if len(results) > 1 for result in results):
        items[result].meta["val"] = result.meta["val"]


def _unused(name: str, taken: set[str]) -> str:
    return name if name not in taken else f"{name}_saved"


def order_placeholders(backward: GraphModule, saved: Sequence[tuple[Node, Node]], tangents: Sequence[Node]) -> None:
    """Put placeholders into the order of the convention: saved values, then tangents."""
    graph = backward.graph
    wanted = [*[placeholder for _, placeholder in saved], *tangents]
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for placeholder in wanted:
        first.prepend(placeholder)
    backward.recompile()

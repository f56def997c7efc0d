"""Delays recomputation in a backward graph until the gradient that needs it has been computed.

A checkpoint saves memory only if one part is recomputed at a time. The recomputation depends on
saved values alone, so XLA may run all of it first and keep the results. The partitioner arranges
the incoming gradient and the saved values side by side. An optimization barrier over both ties them
together. JAX's ``checkpoint`` and torch_xla's do the same (the idea of checkpoints: Chen et al.,
Training Deep Nets with Sublinear Memory Cost, 2016). The barrier also keeps XLA from merging the
recomputation with anything else.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence

import torch
from torch.fx import GraphModule, Node

from aotpack_loader.devices.generator import exchange_random_state

from ..nested import CALL, CONTROL_FLOW

aten = torch.ops.aten


def barrier(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same values, in a graph: XLA computes nothing that depends on one of them before all are available."""
    return list(values)


_COSTLY = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.convolution.default, *CONTROL_FLOW)
"""Operators that the partitioner recomputes only on request.

Barriers before cheap operators would only prevent fusion.
"""


def order_recomputation(module: GraphModule, gradients: Collection[Node]) -> None:
    """Add barriers to a backward graph and the regions that it calls; ``gradients``: its inputs
    that are gradients.
    """
    late = set(gradients)
    done: list[Node] = []  # nodes that depend on gradients, so far
    again: list[Node] = []  # recomputed nodes since the last of those
    for node in list(module.graph.nodes):
        if node.op == "call_function" and late.isdisjoint(node.all_input_nodes):
            again.append(node)
        elif node.op == "call_function":
            _wait(again, done)
            late.add(node)
            done.append(node)
            again = []
            if node.target is CALL:
                _within(module, node, late)
    module.recompile()


def _within(module: GraphModule, call: Node, late: Collection[Node]) -> None:
    region = getattr(module, str(call.args[0].target))  # type: ignore[union-attr]
    inputs = region.graph.find_nodes(op="placeholder")
    if any(node.target is barrier for node in region.graph.nodes):
        return  # another call was processed before
    order_recomputation(region, [own for own, operand in zip(inputs, call.args[2:], strict=True) if operand in late])


def _wait(again: Sequence[Node], done: Sequence[Node]) -> None:
    """Make ``again`` wait for the last gradient in ``done`` that later nodes use."""
    if not any(node.target in _COSTLY for node in again):
        return
    first = again[0]
    gradient = next((node for node in reversed(done) if _is_tensor(node) and _users_after(node, first)), None)
    if gradient is None:
        return
    inside = set(again)
    sources = dict.fromkeys(
        source
        for node in again
        if node.target is not exchange_random_state  # a seed must stay a known input of the graph
        for source in node.all_input_nodes
        if source not in inside and _is_tensor(source)
    )
    graph, waiting = first.graph, [gradient, *sources]
    with graph.inserting_before(first):
        together = graph.call_function(barrier, (waiting,))
        together.meta = {**first.meta, "val": [node.meta["val"] for node in waiting]}
        results = [graph.call_function(operator.getitem, (together, i)) for i in range(len(waiting))]
    for node, result in zip(waiting, results, strict=True):
        result.meta = {**first.meta, "val": node.meta["val"]}
        for user in _users_after(gradient, first) if node is gradient else list(node.users):
            if node is gradient or user in inside:
                user.replace_input_with(node, result)


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _users_after(node: Node, first: Node) -> list[Node]:
    return [user for user in node.users if user.op == "call_function" and first < user]

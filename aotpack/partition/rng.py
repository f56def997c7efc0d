"""Keeps the random numbers of a traced method equal to eager's when the joint graph is partitioned.

In mode ``eager`` every random operator stays in its pass (forward or backward) and in the model's
order, even if its result is unused. In both modes, a recomputation in the backward uses the
generator state that the forward saved.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from aotpack_loader.devices.generator import exchange_random_state, random_state
from aotpack_loader.errors import Problem, UnsupportedError

from .._torch.api import fake_tensors
from .._torch.api.random_operators import draws_in_subgraphs, in_backward, is_random, keep_in_backward
from .._torch.api.torch_types import desc
from .._torch.tracing import aot_autograd
from ..graph import computed_from, source_line

KEPT = "aotpack_kept"
"""Key in a node's ``meta``: the node is kept even if its value is unused."""


@dataclass(frozen=True)
class Pinned:
    """How many outputs :func:`pin` has added to the forward and backward of a joint graph."""

    forward: int = 0
    backward: int = 0


def pin(joint: aot_autograd.Joint) -> Pinned:
    """Keep every random operator in its pass.

    An operator that no output of its pass needs becomes an output itself.

    Raises:
        UnsupportedError: random operators inside control flow, whose order among the others cannot
            be kept.
    """
    _refuse_inner_draws(joint.graph_module)
    graph = joint.graph_module.graph
    drawing = [node for node in graph.nodes if is_random(node)]
    for node in drawing:
        node.meta[KEPT] = True
    if not joint.needs_autograd:
        return Pinned()
    output = graph.output_node()
    outputs, descriptors = list(output.args[0]), list(output.meta["desc"])  # type: ignore[arg-type]
    count = joint.outputs.forward_values.stop
    forward, backward = computed_from(outputs[:count]), computed_from(outputs[count:])
    lone_forward = [node for node in drawing if not in_backward(node) and node not in forward]
    lone_backward = [node for node in drawing if in_backward(node) and node not in backward]
    for node in drawing:
        if in_backward(node):
            keep_in_backward(node)
    for start, nodes in ((len(outputs), lone_backward), (count, lone_forward)):
        outputs[start:start] = [_tensor(node) for node in nodes]
        descriptors[start:start] = [desc.PlainAOTOutput(len(outputs) + i) for i in range(len(nodes))]
    output.args = (tuple(outputs),)
    output.meta["desc"] = descriptors
    joint.graph_module.recompile()
    return Pinned(len(lone_forward), len(lone_backward))


def _refuse_inner_draws(module: GraphModule) -> None:
    problems = [
        Problem(source_line(node) or node.name, f"{node.target} draws inside control flow or a nested compile region")
        for node in draws_in_subgraphs(module)
    ]
    if problems:
        raise UnsupportedError(
            "The model draws random numbers where a bundle cannot draw the same numbers as eager.",
            problems,
            hint='Build without rng="eager", or draw the numbers outside and pass them as an argument.',
        )


def _tensor(node: Node) -> Node:
    """The node, or its first result if it has several."""
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        return node
    with node.graph.inserting_after(node):
        first = node.graph.call_function(operator.getitem, (node, 0))
    first.meta = {**node.meta, "val": value[0]}
    return first


def keep_order(joint: aot_autograd.Joint, forward: GraphModule, backward: GraphModule) -> None:
    """Restore the joint graph's order of random operators, which is the model's: partitioners move
    nodes.
    """
    drawing = [node for node in joint.graph_module.graph.nodes if is_random(node)]
    _order(forward, [node.name for node in drawing if not in_backward(node)])
    _order(backward, [node.name for node in drawing if in_backward(node)])


def _order(module: GraphModule, wanted: Iterable[str]) -> None:
    """Bring the nodes called ``wanted`` into that order; other nodes move only as far as their
    users need it.
    """
    nodes = {node.name: node for node in module.graph.nodes}
    chain = [nodes[name] for name in wanted if name in nodes]
    before = dict(zip(chain[1:], chain, strict=False))
    done: set[Node] = set()
    sorted_nodes: list[Node] = []

    def visit(first: Node) -> None:
        stack = [first]
        while stack:
            node = stack[-1]
            needed = [*node.all_input_nodes, *([before[node]] if node in before else [])]
            missing = [other for other in needed if other not in done]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            if node not in done:
                done.add(node)
                sorted_nodes.append(node)

    for node in module.graph.nodes:
        visit(node)
    if sorted_nodes != list(module.graph.nodes):
        last = sorted_nodes[-1]
        for node in sorted_nodes[:-1]:
            last.prepend(node)


def drawn_anew(backward: GraphModule | None) -> list[str]:
    """Source lines of random operators in control flow that torch's backward recomputes: it draws
    new numbers, as in eager.
    """
    inner = [] if backward is None else [m.graph for m in backward.modules() if isinstance(m, GraphModule) and m is not backward]
    drawing = [node for graph in inner for node in graph.nodes if is_random(node) and KEPT not in node.meta]
    return list(dict.fromkeys(source_line(node) or str(node.target) for node in drawing))


def share_state(forward: GraphModule, backward: GraphModule) -> list[tuple[Node, Node]]:
    """Let random operators that are in both graphs draw the same numbers: the backward restores the
    forward's saved state.

    Returns:
        The saved states: for each, the forward's value and the backward's placeholder.
    """
    again = {node.name: node for node in backward.graph.nodes if is_random(node)}
    pairs = [(node, again[node.name]) for node in forward.graph.nodes if is_random(node) and node.name in again]
    return [_share(first, second) for first, second in pairs]


def _share(first: Node, second: Node) -> tuple[Node, Node]:
    state = _state_value(first)
    with first.graph.inserting_before(first):
        saved = first.graph.call_function(random_state)
    with second.graph.inserting_before(next(iter(second.graph.nodes))):
        restored = second.graph.placeholder(f"{saved.name}_of_{second.name}")
    with second.graph.inserting_before(second):
        own = second.graph.call_function(exchange_random_state, (restored,))
    with second.graph.inserting_after(second):
        back = second.graph.call_function(exchange_random_state, (own,))
    for node in (saved, restored, own, back):
        node.meta = {"val": state, KEPT: True}
    second.meta[KEPT] = True
    return saved, restored


def _state_value(node: Node) -> torch.Tensor:
    with fake_tensors.fake_mode_of(node.graph):
        return torch.empty(torch.get_rng_state().shape, dtype=torch.uint8)

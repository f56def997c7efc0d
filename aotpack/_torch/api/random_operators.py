"""Which operators draw random numbers or have effects."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops import effects
from torch.fx import GraphModule, Node

RANDOM = torch.Tag.nondeterministic_seeded


def is_random(node: Node) -> bool:
    """Whether a node draws from the default generator.

    Attention has the tag too, but draws nothing without dropout.
    """
    return isinstance(node.target, torch._ops.OpOverload) and RANDOM in node.target.tags and _argument(node, "dropout_p") != 0


def may_draw(module: GraphModule) -> bool:
    """Whether a graph draws random numbers. Operators that are not torch's own may."""
    graphs = [m.graph for m in module.modules() if isinstance(m, GraphModule)]
    return any(is_random(node) or _is_foreign(node.target) for graph in graphs for node in graph.nodes)


def _is_foreign(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.namespace not in ("aten", "prims")


def draws_in_subgraphs(module: GraphModule) -> list[Node]:
    """The nodes of control flow and of nested compile regions that draw random numbers."""
    inner = [m.graph for m in module.modules() if isinstance(m, GraphModule) and m is not module]
    return [node for graph in inner for node in graph.nodes if is_random(node)]


def _argument(node: Node, name: str) -> Any:
    """The value of an operator's argument called ``name``, or None."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for i, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            return node.args[i] if i < len(node.args) else node.kwargs.get(name, argument.default_value)
    return None


def is_effectful(target: Any) -> bool:
    """Whether an operator is registered as having an effect."""
    return isinstance(target, torch._ops.OpOverload) and effects._get_effect(target) is not None


def is_fixed(target: Any) -> bool:
    """Whether an operator draws random numbers or has an effect, so that it must not move."""
    return isinstance(target, torch._ops.OpOverload) and (RANDOM in target.tags or is_effectful(target))


def in_backward(node: Node) -> bool:
    """Whether a node of a joint graph was traced in the backward: forward nodes all have a tag,
    backward nodes may not.
    """
    return bool(node.meta.get("partitioner_tag") != "is_forward")


def keep_in_backward(node: Node) -> None:
    """Forbid the partitioner to move a node into the forward, which it may do with nodes that need
    no tangent.
    """
    node.meta["partitioner_tag"] = "must_be_in_backward"

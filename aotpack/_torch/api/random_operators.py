"""Which operators draw random numbers or have effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._functorch import partitioners
from torch._higher_order_ops import effects
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode

RANDOM = torch.Tag.nondeterministic_seeded
_TAGS_FORWARD = hasattr(partitioners, "_has_tag_is_forward")


def is_random(node: Node) -> bool:
    """Whether a node draws from the default generator.

    Attention has the tag too, but draws nothing without dropout.
    """
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and _draws(target, node.args, node.kwargs)


def _draws(operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return RANDOM in operator.tags and _argument(operator, args, kwargs, "dropout_p") != 0


class Drawing(TorchDispatchMode):
    """Notes whether a run draws from the default generator. Operators that are not torch's own may."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is None:
            self.found |= func.namespace not in ("aten", "prims") or _draws(func, args, kwargs)
        return func(*args, **kwargs)


def draws_in_subgraphs(module: GraphModule) -> list[Node]:
    """The nodes of control flow and of nested compile regions that draw random numbers."""
    inner = [m.graph for m in module.modules() if isinstance(m, GraphModule) and m is not module]
    return [node for graph in inner for node in graph.nodes if is_random(node)]


def _argument(operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """The value of an operator's argument called ``name``, or None."""
    for i, argument in enumerate(operator._schema.arguments):
        if argument.name == name:
            return args[i] if i < len(args) else kwargs.get(name, argument.default_value)
    return None


def is_effectful(target: Any) -> bool:
    """Whether an operator is registered as having an effect."""
    return isinstance(target, torch._ops.OpOverload) and _effect(target) is not None


def _effect(target: torch._ops.OpOverload) -> Any:
    """The registered effect of an operator; torch 2.9 has a table of operators."""
    table = getattr(effects, "SIDE_EFFECTS", None)
    return effects._get_effect(target) if table is None else table.get(target)


def is_fixed(target: Any) -> bool:
    """Whether an operator draws random numbers or has an effect, so that it must not move."""
    return isinstance(target, torch._ops.OpOverload) and (RANDOM in target.tags or _effect(target) is not None)


def in_backward(node: Node) -> bool:
    """Whether a node of a joint graph was traced in the backward: forward nodes all have a tag,
    backward nodes may not. torch 2.9 tags the backward alone.
    """
    tag = node.meta.get("partitioner_tag")
    return bool(tag != "is_forward" if _TAGS_FORWARD else tag in ("is_backward", "must_be_in_backward"))


def keep_in_backward(node: Node) -> None:
    """Forbid the partitioner to move a node into the forward, which it may do with nodes that need
    no tangent.
    """
    node.meta["partitioner_tag"] = "must_be_in_backward"

"""Finds what XLA cannot compute in a graph, before it is lowered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from aotpack_loader.devices.generator import exchange_random_state, random_state
from aotpack_loader.errors import Problem

from ..._torch.tracing.aot_autograd import CALL_ON_COPIES
from ...graph import source_line
from ..nested import CONTROL_FLOW, graphs_run_by, regions
from .rules import RULES

_HELD = "contains a graph or an object, which an XLA computation cannot"
_VARIES = "varies from call to call; XLA compiles for fixed sizes"
_NUMBER, _SIZE = f"computes with a size or a number that {_VARIES}", f"has a size that {_VARIES}"
_VARYING = (_NUMBER, _SIZE)
_INSTEAD = {
    "while_loop_stack_output": ": the gradient of a while_loop saves a row for each of an unknown number of iterations; use scan",
    "flex_attention_backward": ": on the CPU, where graphs are traced, torch itself has no gradients of flex attention",
}
"""Why control flow is rejected, and what a model can do instead."""
_WHILE_LOOP = torch.ops.higher_order.while_loop
_OWN = (random_state, exchange_random_state)
_CHECKS = (torch.ops.aten._assert_scalar.default, torch.ops.aten._assert_async.msg, torch.ops.aten._assert_async.default)


def problems(module: GraphModule, key: str) -> Iterator[Problem]:
    """Everything in ``module`` that cannot be lowered, with the user's source line; ``key`` names
    the graph.

    For dynamic values, only their origins are reported, not the values computed from them.
    """
    refused: set[Node] = set()
    for node in module.graph.nodes:
        message = _refusal(node)
        if message and (message not in _VARYING or refused.isdisjoint(node.all_input_nodes)):
            yield Problem(source_line(node) or f"{key}: {node.name}", message)
        if message:
            refused.add(node)
    for region in regions(module, but=refused).values():
        yield from problems(region, key)


def _refusal(node: Node) -> str:
    """Why XLA cannot compute a node; empty if it can."""
    if node.op == "get_attr":
        return "" if all(_runs(user, node) for user in node.users) else _HELD
    if node.op == "output":
        is_plain = all(item is None or isinstance(item, Node) for item in node.args[0])  # type: ignore[union-attr]
        return "" if is_plain else "returns a value that is not a tensor"
    if node.target in _OWN or (node.op == "placeholder" and not node.users):
        return ""
    if node.target in _CHECKS:
        return f"checks a size or a number that {_VARIES}"
    return _refusal_of_call(node)


def _refusal_of_call(node: Node) -> str:
    target = node.args[0] if node.target is CALL_ON_COPIES else node.target
    values = pytree.tree_leaves(node.meta["val"])
    if isinstance(target, torch._ops.HigherOrderOperator) and (message := _refusal_of_control_flow(target, values)):
        return message
    for value in values:
        if message := _bad_value(value):
            return message
    return f"{target} has no rule for XLA" if isinstance(target, torch._ops.OpOverload) and target not in RULES else ""


def _refusal_of_control_flow(target: torch._ops.HigherOrderOperator, values: Sequence[object]) -> str:
    if target not in CONTROL_FLOW:
        return f"higher_order.{target.name()} has no form for XLA{_INSTEAD.get(target.name(), '')}"
    if target is _WHILE_LOOP and not all(isinstance(value, torch.Tensor) for value in values):
        return "carries a Python number between iterations; carry a tensor, torch.tensor(0) in place of 0"
    return ""


def _runs(user: Node, graph: Node) -> bool:
    """Whether ``user`` is control flow that runs ``graph``, or is control flow that is rejected
    itself.
    """
    is_other = isinstance(user.target, torch._ops.HigherOrderOperator) and user.target not in CONTROL_FLOW
    return is_other or graph in graphs_run_by(user)


def _bad_value(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, torch.Tensor):
        return _NUMBER
    if any(not isinstance(size, int) for size in value.shape):
        return _SIZE
    return ""

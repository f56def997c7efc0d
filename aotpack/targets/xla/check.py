"""What of a graph XLA cannot compute, found before anything is lowered: torch_xla would crash, or compute something else."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from aotpack_loader.devices.generator import exchange_random_state, random_state
from aotpack_loader.errors import Problem

from ..._torch_compat.xla import has_kernel
from ...graph import source_line
from .normalise import CALL, regions

_HELD = "holds a graph or an object of its own, which a computation for XLA cannot"
_VARIES = "varies from call to call; XLA compiles for fixed sizes"
_LOOP = ": a Python loop has, and layers that repeat are one computation"
_INSTEAD = {
    "cond": ": compute both results and choose with torch.where",
    "scan": _LOOP,
    "map_impl": _LOOP,
    "associative_scan": _LOOP,
}
"""What a model can do where control flow is refused; the loops are those that run a number of times that the build knows."""
_OWN = (random_state, exchange_random_state)
_CHECKS = (torch.ops.aten._assert_scalar.default, torch.ops.aten._assert_async.msg, torch.ops.aten._assert_async.default)


def problems(module: GraphModule, key: str) -> Iterator[Problem]:
    """Everything in ``module`` that cannot be lowered, with the user's line; ``key`` names the graph."""
    for node in module.graph.nodes:
        message = _refusal(node)
        if message:
            yield Problem(source_line(node) or f"{key}: {node.name}", message)
    for region in regions(module).values():
        yield from problems(region, key)


def _refusal(node: Node) -> str:
    if node.op == "get_attr":
        return "" if all(_calls(user, node) for user in node.users) else _HELD
    if node.op == "output":
        is_plain = all(item is None or isinstance(item, Node) for item in node.args[0])  # type: ignore[union-attr]
        return "" if is_plain else "returns something else than a tensor"
    if node.target in _OWN or (node.op == "placeholder" and not node.users):
        return ""
    if node.target in _CHECKS:
        return f"checks a size or a number that {_VARIES}"
    values = node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else [node.meta["val"]]
    for value in values:
        if message := _bad_value(value):
            return message
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator) and target is not CALL:
        instead = _INSTEAD.get(target.name(), "")
        return f"higher_order.{target.name()} has no form for XLA{instead}"
    if isinstance(target, torch._ops.OpOverload):
        if not has_kernel(target):
            return f"torch_xla has no kernel for {target}"
        if target is torch.ops.aten.as_strided.default and not _is_plain(node.args[0]):
            return "as_strided of a tensor that is not contiguous: tensors of XLA have no strides"
    return ""


def _calls(user: Node, graph: Node) -> bool:
    """Whether ``user`` is a call of ``graph``, or control flow, which is refused by its own name."""
    return user.args[0] is graph if user.target is CALL else isinstance(user.target, torch._ops.HigherOrderOperator)


def _bad_value(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, torch.Tensor):
        return f"computes with a size or a number that {_VARIES}"
    if any(not isinstance(size, int) for size in value.shape):
        return f"has a size that {_VARIES}"
    return ""


def _is_plain(node: object) -> bool:
    value = node.meta["val"] if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.is_contiguous() and value.storage_offset() == 0

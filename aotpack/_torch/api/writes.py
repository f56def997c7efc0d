"""Finds the tensors that a call writes to, by the operator's schema, or by the names of torch's own
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def written(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors whose elements a call writes to; for an indexed assignment, the indexed tensor.

    Changes of sizes and strides alone are not writes.
    """
    operator = operator_of(function)
    if operator is None:
        found = _by_name(function, args, kwargs)
    elif torch.Tag.inplace_view in operator.tags:
        found = []
    else:
        declared = operator._schema.arguments
        by_name = {**dict(zip((argument.name for argument in declared), args, strict=False)), **kwargs}
        found = [by_name.get(argument.name) for argument in declared if argument.is_write]
    return [leaf for leaf in torch.utils._pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]


def operator_of(function: Callable[..., Any]) -> torch._ops.OpOverload | None:
    """The operator that is called, if it is known without looking at the arguments."""
    if isinstance(function, torch._ops.OpOverloadPacket) and len(function.overloads()) == 1:
        function = getattr(function, function.overloads()[0])
    return function if isinstance(function, torch._ops.OpOverload) else None


def _by_name(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    found = [kwargs.get("out")]
    if args and writes_by_name(getattr(function, "__name__", ""), kwargs):
        found.append(args[0])
    return found


def writes_by_name(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a function or method of this name writes to its first argument."""
    return name in _WRITING or kwargs.get("inplace") is True


def may_move_versions(graph: torch.fx.Graph) -> bool:
    """Whether a graph that Dynamo captured has calls that may move the version counter of a tensor."""
    return any(is_in_place(node) for node in graph.nodes if node.op in ("call_function", "call_method"))


def is_in_place(node: torch.fx.Node) -> bool:
    """Whether a call in Dynamo's graph may write to a tensor or change its sizes."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "").partition(".")[0]
    by_name = name.endswith("_") and not name.endswith("__")
    return by_name or name in _OPERATORS or writes_by_name(name, node.kwargs) or node.kwargs.get("out") is not None


def _in_place() -> frozenset[str]:
    """Names of ATen operators that write to elements of their first argument, not only change its
    sizes or strides.
    """
    listed = torch._C._dispatch_get_all_op_names()
    names = {name.removeprefix("aten::").partition(".")[0] for name in listed if name.startswith("aten::")}
    packets = [getattr(torch.ops.aten, name) for name in names if name.endswith("_") and not name.startswith("__")]
    return frozenset(
        packet.__name__
        for packet in packets
        if all(torch.Tag.inplace_view not in getattr(packet, overload).tags for overload in packet.overloads())
    )


_ASSIGNMENTS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_WRITING = _in_place() | {f"__i{name}__" for name in _ASSIGNMENTS} | {"__setitem__"}
_OPERATORS = {f"i{name}" for name in _ASSIGNMENTS} | {"setitem"}
"""Names of the functions of :mod:`operator` that write to their first argument."""

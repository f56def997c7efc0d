"""Drops assignments that give a tensor its own data, as ``self.weight.data = self.weight.data.to(x.device)`` does.

They change nothing if the tensor is on that device, in that element type. Dynamo's graph has
operations on storages for them, which a bundle cannot repeat.
"""

from __future__ import annotations

import torch
from torch.fx import Node

ASSIGNS = ("_lower_version_count_by_1", "shallow_copy_data_")
"""Operations of Dynamo's graph that assign to ``.data``: up to torch 2.14, and from torch 2.15 on."""

_DATA = ("_get_data_attr", "detach")


def drop_assignments_of_own_data(graph: torch.fx.Graph) -> None:
    """Remove from a graph of Dynamo's the assignments to ``.data`` that change nothing."""
    for node in list(graph.nodes):
        if operation(node) not in ASSIGNS:
            continue
        assignment = node.args[0] if operation(node) == "_lower_version_count_by_1" else node
        if not isinstance(assignment, Node) or len(assignment.args) != 2:
            continue
        tensor, value = assignment.args
        if not isinstance(tensor, Node) or _owner(value) is not tensor:
            continue
        for each in dict.fromkeys((node, assignment)):
            each.replace_all_uses_with(tensor)
            graph.erase_node(each)


def _owner(value: object) -> object:
    """The tensor whose data a value is, if nothing was computed or copied on the way."""
    while isinstance(value, Node) and value.args:
        source = value.args[0]
        if not isinstance(source, Node) or not (operation(value) in _DATA or _moves_nothing(value, source)):
            return value
        value = source
    return value


def _moves_nothing(node: Node, source: Node) -> bool:
    """Whether ``x.to(...)`` returns ``x``: no copy is asked for, and device and element type stay."""
    if node.op != "call_method" or node.target != "to" or True in node.args[1:] or node.kwargs.get("copy"):
        return False
    before, after = source.meta.get("example_value"), node.meta.get("example_value")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    return (before.dtype, before.device, before.stride()) == (after.dtype, after.device, after.stride())


def operation(node: Node) -> str:
    """The name of what a node of Dynamo's graph calls: a function, a method, or an operator without its overload."""
    return str(getattr(node.target, "_opname", getattr(node.target, "__name__", node.target)))

"""Reads nodes of a graph: their values, and the node that a chain of views starts from."""

from __future__ import annotations

from typing import Any, Final

import torch

_aten: Final = torch.ops.aten
_VIEWS: Final = {
    getattr(getattr(_aten, f"{name}_copy"), overload): getattr(getattr(_aten, name), overload)
    for name, overload in (
        ("t", "default"), ("transpose", "int"), ("permute", "default"), ("view", "default"), ("expand", "default"),
        ("squeeze", "default"), ("squeeze", "dim"), ("squeeze", "dims"), ("unsqueeze", "default"), ("select", "int"),
        ("slice", "Tensor"), ("split", "Tensor"), ("split_with_sizes", "default"), ("unbind", "int"), ("detach", "default"),
        ("alias", "default"),
    )
}  # fmt: skip


def view_of_copy(target: Any) -> Any:
    """The view that an operator copies, if it copies one: ``aten.t`` for ``aten.t_copy``. Functionalization makes such copies."""
    return _VIEWS.get(target)


def without_views(node: torch.fx.Node) -> torch.fx.Node:
    """The node at the start of the view chain that ends in ``node``."""
    while getattr(node.target, "is_view", False):
        node = node.all_input_nodes[0]
    return node


def value_of(node: Any) -> torch.Tensor:
    """The fake tensor that a node returns."""
    value: torch.Tensor = node.meta["val"]
    return value

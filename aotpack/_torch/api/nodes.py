"""Reads nodes of a graph: their values, and the node that a chain of views starts from."""

from __future__ import annotations

from typing import Any

import torch


def without_views(node: torch.fx.Node) -> torch.fx.Node:
    """The node at the start of the view chain that ends in ``node``."""
    while getattr(node.target, "is_view", False):
        node = node.all_input_nodes[0]
    return node


def value_of(node: Any) -> torch.Tensor:
    """The fake tensor that a node returns."""
    value: torch.Tensor = node.meta["val"]
    return value

"""Nodes of a graph: what they are views of."""

from __future__ import annotations

import torch


def without_views(node: torch.fx.Node) -> torch.fx.Node:
    """What a node is a view of."""
    while getattr(node.target, "is_view", False):
        node = node.all_input_nodes[0]
    return node

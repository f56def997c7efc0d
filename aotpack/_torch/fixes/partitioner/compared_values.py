"""Fixes what the partitioner recomputes."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import CheckpointPolicy

from ...api.nodes import without_views
from ..applying import count_call


def save_compared_values(module: torch.fx.GraphModule) -> None:
    """Make the partitioner save the values that the backward compares for equality, as the gradient
    of ``amax`` does.

    Compiled code may compute a value once vectorized and once as a scalar, and the last bits differ
    (torch 2.13). If the value is recomputed, no element equals the maximum, and ``torch.compile``
    gives no gradient at all.
    """
    for comparison in module.graph.find_nodes(op="call_function", target=torch.ops.aten.eq.Tensor):
        for operand in comparison.all_input_nodes:
            value = without_views(operand)
            if value.op == "call_function" and value.meta["val"].is_floating_point():
                count_call("partitioner-compared-values")
                value.meta["recompute"] = CheckpointPolicy.MUST_SAVE

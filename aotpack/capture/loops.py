"""Loops as torch can trace them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from .._torch.api.graph_modules import graph_modules_in


def copy_captured_carries(module: GraphModule) -> None:
    """Copy what a ``while_loop`` carries if its functions also capture it.

    Torch refuses a tensor that it gets twice there (https://github.com/pytorch/pytorch/issues/191582).
    """
    for part in graph_modules_in(module):
        for loop in part.graph.find_nodes(op="call_function", target=torch.ops.higher_order.while_loop):
            cond, body, carried, captured = loop.args
            memory = {_memory(item) for item in captured if isinstance(item, Node)} - {None}
            with part.graph.inserting_before(loop):
                own = [part.graph.call_method("clone", (item,)) if _memory(item) in memory else item for item in carried]
            loop.args = (cond, body, tuple(own), captured)
        part.recompile()


def _memory(item: Any) -> Any:
    """What identifies the memory of a tensor in Dynamo's graph; null for anything else."""
    value = item.meta.get("example_value") if isinstance(item, Node) else None
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None

"""Loops as torch can trace them."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch.fx import GraphModule, Node

from ..._torch.api.graph_modules import graph_modules_in
from .nodes import memory, value_of


def copy_captured_carries(module: GraphModule) -> None:
    """Copy what a ``while_loop`` carries if its functions also capture it.

    Torch refuses a tensor that it gets twice there (https://github.com/pytorch/pytorch/issues/191582).
    """
    for part in graph_modules_in(module):
        for loop in part.graph.find_nodes(op="call_function", target=torch.ops.higher_order.while_loop):
            cond, body, carried, captured = loop.args
            taken = {memory(item) for item in captured if _is_tensor(item)}
            with part.graph.inserting_before(loop):
                own = [
                    part.graph.call_method("clone", (item,)) if _is_tensor(item) and memory(item) in taken else item
                    for item in carried
                ]
            loop.args = (cond, body, tuple(own), captured)
        part.recompile()


def _is_tensor(item: Any) -> TypeGuard[Node]:
    return isinstance(item, Node) and isinstance(value_of(item), torch.Tensor)

"""Moves graphs that were traced on the CPU to a GPU."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule
from torch.fx.node import map_aggregate

from ...api.fake_tensors import fake_mode_of
from ...api.graph_modules import graph_modules_in

DEVICE: Final = torch.device("cuda", 0)
"""The device of code for GPUs. A loader may run it on another."""


def retargeted(module: GraphModule) -> None:
    """Put all tensors of a graph on :data:`DEVICE`, in place."""
    mode = fake_mode_of(module.graph)
    for part in graph_modules_in(module):
        with mode:
            for node in part.graph.nodes:
                node.args, node.kwargs = map_aggregate((node.args, node.kwargs), _moved_device)
                node.meta.pop("tensor_meta", None)
                if "val" in node.meta:
                    node.meta["val"] = pytree.tree_map_only(torch.Tensor, _moved, node.meta["val"])
        part.recompile()


def _moved_device(value: Any) -> Any:
    return DEVICE if isinstance(value, torch.device) else value


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """A fake tensor with the same sizes and strides, on the device."""
    moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE)
    return torch._conj(moved) if tensor.is_conj() else moved

"""What rewrites of a traced graph share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node, map_arg

_ATEN = torch.ops.aten


def call(graph: Graph, like: Node, target: Any, *args: Any) -> Node:
    """A call with the type of its result, at the place and source line of ``like``. Fake tensors must be in use."""
    made = graph.call_function(target, args)
    made.meta = {name: value for name, value in like.meta.items() if name != "val"}
    made.meta["val"] = target(*map_arg(args, lambda node: node.meta["val"]))
    return made


def is_zeros(value: object) -> bool:
    """Whether a value is a node that makes a tensor of zeros."""
    if not isinstance(value, Node):
        return False
    filled_with = value.args[1] if value.target == _ATEN.full.default else None
    return value.target == _ATEN.zeros.default or (isinstance(filled_with, (int, float)) and filled_with == 0)


def texts(sizes: Sequence[int | torch.SymInt]) -> list[str]:
    """Sizes or strides as text. To compare symbolic ones would restrict the model to these."""
    return list(map(str, sizes))


def alike(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two fake tensors have the same type, sizes and strides."""
    laid_out = [texts((*value.shape, *value.stride())) for value in (found, expected)]
    return found.dtype == expected.dtype and laid_out[0] == laid_out[1]

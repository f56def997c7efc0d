"""Finds the user's source lines of operators that may fail on the values of their inputs, for the
loader's messages.
"""

from __future__ import annotations

import re
from pathlib import PurePath

import torch
from torch.fx import GraphModule

from .convert import source_line

_BY_VALUE = re.compile(
    r"\b_?(unsafe_)?(masked_|functional_)?(index|embedding|gather|scatter|take|put|nll_loss|assert|bincount|repeat_interleave"
    r"|multinomial|masked_scatter|local_scalar|sym_constrain|cholesky|linalg|inverse|lu_|histc|ctc_loss|grid_sampler"
    r"|binary_cross_entropy|bernoulli|normal|poisson|max_unpool|segment_reduce|multi_?(label_)?margin_loss)"
)
_DIVIDES = re.compile(r"\b(div|floor_divide|remainder|fmod)\b")
_LINE = re.compile(r'File "([^"]+)", line (\d+), in [^:]*: ?(.*)')


def lines(module: GraphModule) -> dict[str, str]:
    """Map node names to source lines (``model.py:12: return self.embedding(x)``), without folders
    of the build machine.
    """
    found: dict[str, str] = {}
    for graph in (part for part in module.modules() if isinstance(part, GraphModule)):
        for node in graph.graph.nodes:
            if node.op == "call_function" and _may_refuse(node) and (match := _LINE.match(source_line(node))):
                path, number, code = match.groups()
                found.setdefault(node.name, f"{PurePath(path).name}:{number}: {code}")
    return found


def _may_refuse(node: torch.fx.Node) -> bool:
    name = str(node.target)
    if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in ("aten", "prims"):
        return True
    if _DIVIDES.search(name):
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    return bool(_BY_VALUE.search(name))

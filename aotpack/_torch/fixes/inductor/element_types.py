"""Fixes the element types of what Inductor's lowerings return."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch._inductor import ir, lowering
from torch._inductor.graph import GraphLowering

from ...api.patching import replaced
from ..applying import reached

_FIX = "inductor-types-of-results"


@contextlib.contextmanager
def keep_element_types() -> Iterator[None]:
    """Give what a node is lowered to the element type that the node has in the graph."""
    run = GraphLowering.run_node

    def run_node(graph: GraphLowering, node: torch.fx.Node) -> Any:
        result = run(graph, node)
        value = node.meta.get("val") if node.op == "call_function" else None
        if not isinstance(result, ir.TensorBox) or not isinstance(value, torch.Tensor):
            return result
        if result.maybe_get_dtype() in (None, value.dtype):
            return result
        reached(_FIX)
        return lowering.to_dtype(result, value.dtype)

    with replaced(_FIX, GraphLowering, "run_node", run_node):
        yield

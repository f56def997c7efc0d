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
from ..applying import count_call

_FIX = "inductor-types-of-results"


@contextlib.contextmanager
def keep_element_types() -> Iterator[None]:
    """Give what generated code computes for a node the element type that the node has in the graph.

    The result of a kernel of torch is left alone: the kernel decides its type. The workspace of
    oneDNN's LSTM is bytes, but both the graph and Inductor may take it for another type.
    """
    run = GraphLowering.run_node

    def run_node(graph: GraphLowering, node: torch.fx.Node) -> Any:
        result = run(graph, node)
        value = node.meta.get("val") if node.op == "call_function" else None
        if not isinstance(result, ir.TensorBox) or not isinstance(value, torch.Tensor):
            return result
        if result.maybe_get_dtype() in (None, value.dtype) or not _is_generated(result):
            return result
        count_call(_FIX)
        return lowering.to_dtype(result, value.dtype)

    with replaced(_FIX, GraphLowering, "run_node", run_node):
        yield


def _is_generated(result: ir.TensorBox) -> bool:
    """Tell whether Inductor generates the code that computes ``result``, rather than calling a kernel."""
    value: object = result
    while isinstance(value, (ir.MutableBox, ir.BaseView)):
        value = value.data
    return isinstance(value, (ir.Loops, ir.ComputedBuffer))

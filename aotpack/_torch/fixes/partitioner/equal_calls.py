"""Fixes which equal calls the partitioner merges."""

from __future__ import annotations

import operator

import torch
from torch._functorch import compile_utils, partitioners
from torch.fx import Graph

from ...api.patching import Replacing, patched
from ..applying import count_call

_FIX = "partitioner-results-of-equal-calls"
_VALUES = "aotpack_values"


def keep_results_apart() -> Replacing:
    """Merge no two calls of which a result is returned.

    torch keeps calls apart whose result shares memory with what is returned. It does not look at several results.
    While it merges, such a call has the value of the one that is returned.
    """
    merge = compile_utils.fx_graph_cse

    def merged(graph: Graph) -> Graph:
        for item in graph.output_node().all_input_nodes:
            call = item.args[0] if item.target is operator.getitem else None
            if isinstance(call, torch.fx.Node) and _VALUES not in call.meta:
                count_call(_FIX)
                call.meta |= {_VALUES: call.meta["val"], "val": item.meta["val"]}
        found = merge(graph)
        for node in (*graph.nodes, *found.nodes):
            if _VALUES in node.meta:
                node.meta["val"] = node.meta.pop(_VALUES)
        return found

    return patched(_FIX, partitioners, "fx_graph_cse", merged)

"""Returns sparse results as dense tensors, because a bundle's graphs contain strided tensors only.

This applies if the model's last step makes a result sparse. The loader then makes the dense result
sparse again. Sparse intermediate values and sparse results with gradients stay in the graph, and
are refused later.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.utils._pytree as pytree
from torch.fx import Node

from .._torch.tracing import aot_autograd


def with_dense_results(joint: aot_autograd.Joint) -> aot_autograd.Joint:
    """Return the joint graph with a dense copy in place of each sparse result. :attr:`Joint.sparse` lists these results.

    The graph returns a copy because the loader writes to arguments before it makes results. A
    sparse tensor does not follow later writes to its source.
    """
    if joint.gradient_metas is not None:  # with subclasses, outputs of the graph do not match results one by one
        return joint
    graph = joint.graph_module.graph
    infos = joint.metadata.output_info
    results = pytree.tree_leaves(graph.output_node().args)[joint.outputs.result_values]
    found: dict[int, int] = {}
    for i, (info, node) in enumerate(zip(infos, results, strict=True)):
        sparse_dim = _sparse_dim(node) if isinstance(node, Node) else None
        # A result that is returned twice must stay one object, so it cannot become two copies.
        if sparse_dim is None or info.requires_grad or results.count(node) > 1 or [*node.users] != [graph.output_node()]:
            continue
        with graph.inserting_before(node):
            dense = graph.call_function(torch.ops.aten.clone.default, (node.args[0],))
        dense.meta = {**node.meta, "val": node.args[0].meta["val"].clone()}
        node.replace_all_uses_with(dense)
        graph.erase_node(node)
        found[i] = sparse_dim
    if not found:
        return joint
    joint.graph_module.recompile()
    return dataclasses.replace(joint, sparse=found)


def _sparse_dim(node: Node) -> int | None:
    """Return how many dimensions of a dense tensor ``node`` makes sparse.

    None if it does something else.
    """
    source = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], Node) else None
    if not isinstance(source, torch.Tensor) or source.layout != torch.strided:
        return None
    if node.target is torch.ops.aten._to_sparse.sparse_dim:
        return int(node.args[1])  # type: ignore[arg-type]
    options = [value for key, value in node.kwargs.items() if not (key == "layout" and value is torch.sparse_coo)]
    is_plain = node.target is torch.ops.aten._to_sparse.default and all(value is None for value in options)
    return source.dim() if is_plain else None

"""Sparse results: a graph holds strided tensors only, so a result that the model makes sparse last leaves its graph dense.

The loader makes it sparse then. What is sparse in between, and what carries a gradient, stays in the graph, and is refused.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.utils._pytree as pytree
from torch.fx import Node

from .. import _torch as compat


def with_dense_results(joint: compat.Joint) -> compat.Joint:
    """The joint graph with a dense copy in place of each sparse result, and :attr:`Joint.sparse` saying which they are.

    A copy: the loader writes to arguments before it makes results, and what was made sparse does not follow its source.
    """
    if joint.gradient_metas is not None:  # beside subclasses, outputs of the graph are not results one by one
        return joint
    graph = joint.graph_module.graph
    infos = joint.metadata.output_info
    first = joint.tokens + joint.metadata.num_mutated_inp_runtime_indices
    results = pytree.tree_leaves(graph.output_node().args)[first : first + len(infos)]
    found: dict[int, int] = {}
    for i, (info, node) in enumerate(zip(infos, results, strict=True)):
        sparse_dim = _sparse_dim(node) if isinstance(node, Node) else None
        # A result returned twice is one object, which two copies would not be.
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
    """How many dimensions of a dense tensor ``node`` makes sparse; None where it does something else."""
    source = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], Node) else None
    if not isinstance(source, torch.Tensor) or source.layout != torch.strided:
        return None
    if node.target is torch.ops.aten._to_sparse.sparse_dim:
        return int(node.args[1])  # type: ignore[arg-type]
    options = [value for key, value in node.kwargs.items() if not (key == "layout" and value is torch.sparse_coo)]
    is_plain = node.target is torch.ops.aten._to_sparse.default and all(value is None for value in options)
    return source.dim() if is_plain else None

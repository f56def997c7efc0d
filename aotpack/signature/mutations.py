"""Describes mutations: the values that the forward graph returns for the loader to write to arguments and state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from aotpack_loader.format import schema

from .._torch.api import checkpoint as checkpoints
from ..graph import source_line, tensor_value, views
from . import subclass_leaves
from .forward_outputs import ForwardOutputs
from .partitioned import PartitionedMethod
from .primals import Primals


def describe_mutations(partitioned: PartitionedMethod, primals: Primals, outputs: ForwardOutputs) -> list[schema.Mutation]:
    """Describe the mutations, and add the values to write back to the forward's outputs. They come first."""
    found = []
    for index, node in zip(partitioned.metadata.mutated_inp_runtime_indices, partitioned.mutated_values, strict=True):
        if isinstance(node, Node) and node is not primals.traced[index]:
            found.append(_mutation(partitioned, primals, outputs, index, node))
            _refuse_offset_dependence(partitioned, primals, index, found[-1])
    for index, info in enumerate(partitioned.metadata.input_info):
        if getattr(info, "mutation_inductor_storage_resize", False):
            partitioned.refuse(primals.path(index), "the model resizes its storage (untyped_storage().resize_)")
    return found


def geometry_of(partitioned: PartitionedMethod, source: Node, node: Node) -> schema.Geometry:
    """Return the sizes, strides and offset of the argument ``source`` after the model changed them to those of ``node``.

    In the trace it began at offset 0.
    """
    kind = tensor_value(node.meta["val"], partitioned.shape_env)
    above = {*views.chain(node), source}
    strided = [n for n in partitioned.parts.forward.graph.nodes if n.target in views.AS_STRIDED and views.root(n) in above]
    absolute = any(len(n.args) > 3 for n in strided)
    return schema.Geometry(kind.shape, kind.stride, kind.offset, absolute)


def written_in_checkpoints(partitioned: PartitionedMethod, primals: Primals) -> list[str]:
    """Return the paths of what is written inside a checkpoint.

    Eager writes again when it recomputes.
    """
    written = zip(partitioned.parts.forward_outputs, partitioned.metadata.mutated_inp_runtime_indices, strict=False)
    return [primals.path(index) for node, index in written if isinstance(node, Node) and checkpoints.is_recomputed(node)]


def describe_touched(partitioned: PartitionedMethod, primals: Primals, mutations: Sequence[schema.Mutation]) -> list[int]:
    """Return the primals whose version counter moves although nothing is written to them.

    The model calls an in-place operator that has no effect, or changes the sizes of a view or a
    detached alias.
    """
    written = {mutation.primal for mutation in mutations}
    return [p for p in map(primals.index, touched_inputs(partitioned, primals)) if p not in written]


def touched_inputs(partitioned: PartitionedMethod, primals: Primals) -> list[int]:
    """Return the indices of AOTAutograd's inputs whose version counter eager moves."""
    return [i for i in range(len(primals.traced)) if i not in primals.dropped and _touches(partitioned, primals, i)]


def _mutation(
    partitioned: PartitionedMethod, primals: Primals, outputs: ForwardOutputs, index: int, node: Node
) -> schema.Mutation:
    info = partitioned.metadata.input_info[index]
    source, path = primals.traced[index], primals.path(index)
    kind = _mutation_kind(info)
    if kind == "storage":
        partitioned.refuse(path, "the model replaces its storage (set_)")
    elif kind != "data" and subclass_leaves.is_folded(source):  # torch before 2.15 refuses it itself
        partitioned.refuse(path, "the model changes its sizes in place, which is not allowed on tensor subclasses")
    elif kind in ("data", "data_and_metadata") and views.reach(node) > views.reach(source):
        kind = "resize"
        if not node.meta["val"].is_contiguous():
            partitioned.refuse(path, "the model enlarges it (resize_) and changes its strides")
    elif kind == "metadata" and _grows_unwritten(source, node):
        what = "the model enlarges it (resize_) and leaves new elements unset; write to all of it"
        partitioned.refuse(path, f"{what}: {source_line(node)}")
    hidden = info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode
    geometry = geometry_of(partitioned, source, node) if kind in ("metadata", "data_and_metadata") else None
    unread = kind == "metadata" and geometry is not None and geometry.absolute
    return schema.Mutation(
        primal=primals.index(index),
        output=outputs.add(_empty_like(partitioned, source) if unread else node),
        kind=kind,
        requires_grad=info.requires_grad and info.mutates_data,
        hidden_from_autograd=hidden or _is_leaf_with_gradient(partitioned, primals.of(index)),
        geometry=geometry,
        unversioned=_touches(partitioned, primals, index) is False,
    )


def _mutation_kind(info: Any) -> Any:
    if info.mutates_storage_metadata:
        return "storage"
    if info.mutates_data and info.mutates_metadata:
        return "data_and_metadata"
    return "data" if info.mutates_data else "metadata"


def _grows_unwritten(source: Node, node: Node) -> bool:
    """Whether ``resize_`` made the argument larger.

    Its value is then a copy, while other changes of sizes give a view.
    """
    return views.root(node) is not source and views.reach(node) > views.reach(source)


def _empty_like(partitioned: PartitionedMethod, source: Node) -> Node:
    """Return an empty tensor, as the output for a value that is not read.

    After ``as_strided_``, the value may use elements of the storage that the graph does not get in
    a call.
    """
    graph = partitioned.parts.forward.graph
    with graph.inserting_before(graph.output_node()):
        node = graph.call_function(torch.ops.aten.new_empty.default, (source, [0]))
    node.meta["val"] = source.meta["val"].new_empty([0])
    return node


def _is_leaf_with_gradient(partitioned: PartitionedMethod, primal: schema.Primal) -> bool:
    """Whether an argument is a leaf that requires a gradient.

    A write to it must have been hidden from autograd.
    """
    if not isinstance(primal, schema.InputPrimal):
        return False
    example = partitioned.call.leaves[primal.leaf]
    return bool(example.is_leaf and example.requires_grad)


def _refuse_offset_dependence(partitioned: PartitionedMethod, primals: Primals, index: int, mutation: schema.Mutation) -> None:
    primal = primals.described[mutation.primal]
    if mutation.kind == "metadata" or mutation.geometry is None or not isinstance(primal, schema.InputPrimal):
        return
    if mutation.geometry.absolute and partitioned.call.leaves[primal.leaf].storage_offset():
        message = "has a storage offset, and the model writes to it through as_strided_, which ignores that offset"
        partitioned.refuse(primals.path(index), message)


def _touches(partitioned: PartitionedMethod, primals: Primals, index: int) -> bool | None:
    """Whether eager moves the version counter of AOTAutograd's input ``index``.

    None if unknown, or for a base.
    """
    if not isinstance(primals.of(index), (schema.InputPrimal, schema.ParameterPrimal, schema.BufferPrimal)):
        return None
    return partitioned.joint.touches(partitioned.joint.primal_descriptors[index])

"""Describes saved tensors, tangents and gradients: what passes between forward graph, autograd and backward graph."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from aotpack_loader.format import schema

from .. import partition
from .._torch.api import fake_tensors
from .._torch.api.nodes import without_views
from .._torch.api.torch_types import StorageWeakRef, desc, in_format
from ..graph import source_line, tensor_value, views
from ..graph.expressions import size_expression
from . import subclass_leaves
from .convention import NOT_STORED
from .forward_outputs import ForwardOutputs
from .mutations import touched_inputs
from .partitioned import PartitionedMethod, tensor_of
from .primals import Primals, copy_of
from .results import FRESH
from .sizes import DataDependentSizes


@dataclass(frozen=True)
class BackwardPart:
    """The backward's document (None: there is no backward), and its graph's outputs.

    ``saved_values`` pairs each saved value of the forward with the backward's placeholder for it.
    """

    described: schema.Backward | None
    outputs: list[Node]
    saved_values: Sequence[tuple[Node, Node]] = ()


@dataclass(frozen=True)
class ReturnedValues:
    """What a call gives to autograd: mutations, and the values of the results."""

    mutations: Sequence[schema.Mutation]
    results: Sequence[Any]


def describe_backward(
    partitioned: PartitionedMethod,
    primals: Primals,
    sizes: DataDependentSizes,
    outputs: ForwardOutputs,
    returned: ReturnedValues,
) -> BackwardPart:
    """Describe the backward, and add what it needs to the forward's outputs."""
    backward = partitioned.parts.backward
    if backward is None:
        return BackwardPart(None, [])
    values = _with_copies_of_overwritten(partitioned, primals)
    saved = _saved(partitioned, primals, sizes, outputs, values)
    tangents = _tangents(partitioned, primals, sizes, outputs, returned)
    gradients, nodes = _gradients(partitioned, primals, backward)
    sparse = _sparse_gradients(partitioned, primals, backward, nodes)
    writes = _tangent_writes(partitioned, backward, nodes)
    state = _state_writes(partitioned, primals, backward, nodes)
    depends = _depends(partitioned, backward, nodes)
    described = schema.Backward(
        NOT_STORED, saved, tangents, gradients, depends=depends, sparse=sparse, tangent_writes=writes, state_writes=state
    )
    return BackwardPart(described, nodes, values)


def saved_bytes(primals: Primals, values: Sequence[tuple[Node, Node]]) -> int:
    """Return the bytes of saved activations at the example's sizes.

    Storages of primals do not count.
    """
    arguments = {
        StorageWeakRef(value.untyped_storage())
        for value in map(tensor_of, subclass_leaves.flat(primals.nodes))
        if value is not None
    }
    kept: dict[tuple[StorageWeakRef, Node | None], Any] = {}
    for node, _ in values:
        if (value := tensor_of(node)) is not None:
            storage = value.untyped_storage()
            kept[StorageWeakRef(storage), _call_of_region(node)] = storage
    return sum(fake_tensors.hint_of(storage.nbytes()) for (key, _), storage in kept.items() if key not in arguments)


def _call_of_region(node: Node) -> Node | None:
    """The call of a nested compile region that returns a value. The fake results of all calls of a region share storages."""
    root = without_views(node)
    call = root.args[0] if root.target is operator.getitem else None
    return call if isinstance(call, Node) and call.target is torch.ops.higher_order.invoke_subgraph else None


# ------------------------------------------------------------------ saved tensors


def _saved(
    partitioned: PartitionedMethod,
    primals: Primals,
    sizes: DataDependentSizes,
    outputs: ForwardOutputs,
    values: Sequence[tuple[Node, Node]],
) -> list[schema.Saved]:
    donated = _donated(partitioned, primals, outputs, values)
    of_primals = {
        part: schema.SavedPrimal(i, number if subclass_leaves.is_folded(primal) else None)
        for i, primal in enumerate(primals.nodes)
        for number, part in enumerate(subclass_leaves.plain(primal))
    }
    found: list[schema.Saved] = []
    for value, _ in values:
        if not isinstance(value.meta["val"], torch.Tensor):
            found.append(_saved_size(partitioned, sizes, outputs, value))
        elif value in of_primals:
            found.append(of_primals[value])
        else:
            check = not value.meta.get("saved_tensor_with_no_vc_check", False)
            found.append(schema.SavedOutput(outputs.find_or_add(value), check_version=check, donated=value in donated))
    return found


def _saved_size(partitioned: PartitionedMethod, sizes: DataDependentSizes, outputs: ForwardOutputs, value: Node) -> schema.Saved:
    number = value.meta["val"]
    if not isinstance(number, torch.SymFloat) and sizes.is_known(size := size_expression(number, partitioned.shape_env)):
        return schema.SavedSize(size)
    return schema.SavedOutput(outputs.find_or_add(value), check_version=False)


def _with_copies_of_overwritten(partitioned: PartitionedMethod, primals: Primals) -> list[tuple[Node, Node]]:
    """Return what is saved, with a copy of each value that shares storage with a primal which the call changes afterwards.

    The change is a write in the epilogue, or a raised version counter.
    """
    changed = {*partitioned.metadata.mutated_inp_runtime_indices, *touched_inputs(partitioned, primals)}
    written = {part for index in changed for part in subclass_leaves.plain(primals.traced[index])}
    saved = list(partitioned.parts.saved)
    for i, (value, to) in enumerate(saved):
        if isinstance(value.meta["val"], torch.Tensor) and views.root(value) in written:
            copy = copy_of(partitioned, primals, value)
            copy.meta["saved_tensor_with_no_vc_check"] = True
            to.meta = {**to.meta, "val": copy.meta["val"]}
            saved[i] = (copy, to)
    return saved


def _donated(
    partitioned: PartitionedMethod, primals: Primals, outputs: ForwardOutputs, values: Sequence[tuple[Node, Node]]
) -> set[Node]:
    """Return the saved tensors that share storage with nothing else.

    The backward may reuse their memory. Equal values have been merged into one node, and their
    recorded storages do not show it. So the roots of views are compared too.
    """
    gradients = [gradient for gradient in partitioned.parts.gradients if isinstance(gradient, Node)]
    others = subclass_leaves.flat([*primals.nodes, *outputs.nodes, *gradients])
    taken = {StorageWeakRef(value.untyped_storage()) for value in map(tensor_of, others) if value is not None}
    roots = {views.origin(node) for node in others if isinstance(node, Node)}
    return {
        node
        for node, _ in values
        if views.origin(node) not in roots
        and (value := tensor_of(node)) is not None
        and StorageWeakRef(value.untyped_storage()) not in taken
    }


# ------------------------------------------------------------------ tangents and gradients


def _tangents(
    partitioned: PartitionedMethod,
    primals: Primals,
    sizes: DataDependentSizes,
    outputs: ForwardOutputs,
    returned: ReturnedValues,
) -> list[schema.Tangent]:
    found = []
    for node, descriptor in zip(partitioned.tangents, partitioned.metadata.traced_tangents_descs, strict=True):
        value = node.meta["val"]
        output = _tangent_output(partitioned, primals, outputs, descriptor, returned)
        kind = tensor_value(value, partitioned.shape_env)
        where = source_line(outputs.nodes[output]) or "the gradient of a result"
        static = all(isinstance(size, int) for size in (*kind.shape, *kind.stride))
        shape = kind.shape
        if not all(map(sizes.is_known, shape)):  # direct tracing renumbers data-dependent sizes in the joint graph
            shape = tensor_value(outputs.nodes[output].meta["val"], partitioned.shape_env).shape
        if not all(map(sizes.is_known, shape)):
            partitioned.refuse(
                f"result {output}", "requires a gradient, and its sizes depend on data in a way that aotpack does not support"
            )
        found.append(
            schema.Tangent(
                output=output,
                dtype=kind.dtype,
                shape=shape,
                stride=kind.stride if static else None,
                memory_format=_memory_format(value),
                subclass=subclass_leaves.describe(node, where, partitioned.shape_env),
            )
        )
    return found


def _tangent_output(
    partitioned: PartitionedMethod,
    primals: Primals,
    outputs: ForwardOutputs,
    descriptor: Any,
    returned: ReturnedValues,
) -> int:
    """Return the index of the forward output that a tangent belongs to."""
    of, names = descriptor.output, desc
    if isinstance(of, names.InputMutationAOTOutput):
        primal = primals.index(partitioned.joint.primal_descriptors.index(of.mutated_input))
        return next(mutation.output for mutation in returned.mutations if mutation.primal == primal)
    if isinstance(of, names.PlainAOTOutput):
        return _position_of_result(partitioned, outputs, returned.results, of.idx)
    if isinstance(of, names.IntermediateBaseAOTOutput):
        result: Any = of.base_of  # the result that first needed the base
        base = partitioned.metadata.output_info[result.idx].base_idx
        return outputs.nodes.index(partitioned.base_values[base])
    partitioned.refuse("graph", f"a tangent of kind {type(of).__name__}")
    return 0


def _position_of_result(partitioned: PartitionedMethod, outputs: ForwardOutputs, results: Sequence[Any], index: int) -> int:
    """Return the output position of a result.

    Outputs are in order, so the n-th use of a node has its n-th position.
    """
    node = results[index]
    earlier = sum(
        other is node and info.output_type in FRESH
        for other, info in zip(results[:index], partitioned.metadata.output_info, strict=False)
    )
    mutated = sum(output is node for output in partitioned.mutated_values)
    positions = [i for i, output in enumerate(outputs.nodes) if output is node]
    return positions[mutated + earlier]


def _gradients(partitioned: PartitionedMethod, primals: Primals, backward: GraphModule) -> tuple[list[int | None], list[Node]]:
    """Return for each primal the position of its gradient among the backward's outputs, and these outputs."""
    kept: list[Node] = []
    gradients: list[int | None] = []
    values = partition.output_args(backward)[partitioned.outputs.of_backward.gradient_values]
    for i, value in enumerate(values):
        if i in primals.dropped:
            continue
        if isinstance(value, Node):
            gradients.append(len(kept))
            kept.append(value)
        else:
            gradients.append(None)
    gradients += [None] * (len(primals.described) - len(gradients))
    return gradients, kept


def _sparse_gradients(
    partitioned: PartitionedMethod, primals: Primals, backward: GraphModule, kept: list[Node]
) -> list[schema.SparseGradient]:
    """Add the indices of sparse gradients to the outputs of the backward, and describe these gradients."""
    found = []
    added = partition.output_args(backward)[partitioned.outputs.of_backward.sparse_indices]
    for gradient, indices in zip(partitioned.joint.sparse_gradients, added, strict=True):
        if gradient not in primals.dropped:
            found.append(schema.SparseGradient(primals.index(gradient), len(kept)))
            kept.append(indices)  # type: ignore[arg-type]
    return found


def _tangent_writes(partitioned: PartitionedMethod, backward: GraphModule, kept: list[Node]) -> list[schema.TangentWrite]:
    """Add the new values of written tangents to the outputs of the backward, and describe the writes."""
    found = []
    added = partition.output_args(backward)[partitioned.outputs.of_backward.tangent_values]
    for tangent, value in zip(partitioned.joint.tangent_writes, added, strict=True):
        found.append(schema.TangentWrite(tangent, len(kept)))
        kept.append(value)  # type: ignore[arg-type]
    return found


def _state_writes(
    partitioned: PartitionedMethod, primals: Primals, backward: GraphModule, kept: list[Node]
) -> list[schema.StateWrite]:
    """Add the new values of written buffers to the outputs of the backward, and describe the writes."""
    found = []
    added = partition.output_args(backward)[partitioned.outputs.of_backward.state_values]
    for (primal, writers), value in zip(partitioned.joint.state_writes.items(), added, strict=True):
        described = [schema.Writer(list(one.tangents), [primals.index(i) for i in one.primals]) for one in writers]
        found.append(schema.StateWrite(primals.index(primal), len(kept), described))
        kept.append(value)  # type: ignore[arg-type]
    return found


def _depends(partitioned: PartitionedMethod, backward: GraphModule, gradients: Sequence[Node]) -> list[list[int]]:
    """Return the tangents that each of ``gradients`` is computed from.

    Empty if each depends on all.
    """
    if len(partitioned.tangents) < 2:
        return []
    reach: dict[Node, frozenset[int]] = {
        part: frozenset([i]) for i, node in enumerate(partitioned.tangents) for part in subclass_leaves.plain(node)
    }
    partition.propagate_dependencies(backward, reach)
    found = [sorted(reach[value]) for value in gradients]
    return [] if all(len(tangents) == len(partitioned.tangents) for tangents in found) else found


def _memory_format(value: torch.Tensor) -> Any:
    if in_format(value, torch.contiguous_format):
        return "contiguous_format"
    if in_format(value, torch.channels_last):
        return "channels_last"
    if in_format(value, torch.channels_last_3d):
        return "channels_last_3d"
    return "contiguous_format"

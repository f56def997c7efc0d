"""Describes primals: the source of each input of the forward graph."""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch.fx import GraphModule, Node

from aotpack_loader.format import schema

from .. import partition
from .._torch.api import fake_tensors
from .._torch.api.torch_types import desc
from ..graph import source_line, views
from ..graph.literals import dtype_name
from . import subclass_leaves
from .inputs import Inputs
from .partitioned import PartitionedMethod


@dataclass(frozen=True)
class Primals:
    """The inputs of the forward graph.

    ``nodes`` and ``described`` correspond one to one. ``traced`` are AOTAutograd's inputs, which
    its metadata counts by; those at the indices ``dropped`` are no primals. ``sizes`` are
    placeholders of dynamic integers, which follow the primals.
    """

    nodes: Sequence[Node]
    described: Sequence[schema.Primal]
    traced: Sequence[Node]
    dropped: Collection[int]
    paths: Sequence[str]
    sizes: Sequence[Node]

    def index(self, traced: int) -> int:
        """Return the position of AOTAutograd's input ``traced`` among the primals."""
        return traced - sum(dropped < traced for dropped in self.dropped)

    def of(self, traced: int) -> schema.Primal:
        """Return the description of AOTAutograd's input ``traced``."""
        return self.described[self.index(traced)]

    def path(self, traced: int) -> str:
        """Return the path of AOTAutograd's input ``traced``."""
        return self.paths[traced]


def describe_primals(partitioned: PartitionedMethod, inputs: Inputs) -> tuple[PartitionedMethod, Primals]:
    """Describe the forward's inputs, and return the method with them.

    Non-tensor arguments are removed from the graphs' inputs, because the graphs are specialised to
    their values. Tensors that a graph closes over become primals, after the others.
    """
    described = _describe(partitioned)
    paths = [_path(partitioned, inputs, i) for i in range(len(partitioned.joint.primal_descriptors))]
    kept = _PrimalEditor(partitioned, inputs, described)
    kept.lift_constants(partitioned.parts.forward)
    if partitioned.parts.backward is not None:
        kept.save_backward_constants(partitioned.parts.backward)
    parts = dataclasses.replace(partitioned.parts, forward_outputs=kept.forward_outputs, saved=kept.saved)
    primals = Primals(kept.nodes, kept.described, list(parts.primals), kept.dropped, paths, kept.sizes)
    return dataclasses.replace(partitioned, parts=parts), primals


def mark_reads_from_storage_start(
    partitioned: PartitionedMethod, primals: Primals, saved: Sequence[tuple[Node, Node]], leaves: Sequence[schema.InputLeaf]
) -> list[schema.InputLeaf]:
    """Mark the arguments that ``as_strided`` reads with an offset.

    In the trace they had a storage offset of 0.
    """
    marked = list(leaves)
    inputs = {node: i for i, node in enumerate(primals.nodes)}
    inputs |= {placeholder: inputs[value] for value, placeholder in saved if value in inputs}
    graphs = [
        partitioned.parts.forward.graph,
        *([] if partitioned.parts.backward is None else [partitioned.parts.backward.graph]),
    ]
    reads = {
        inputs[start]: node
        for graph in graphs
        for node in graph.nodes
        if node.target in views.AS_STRIDED and len(node.args) > 3 and (start := views.root(node.args[0])) in inputs
    }
    for i, node in reads.items():
        primal = primals.described[i]
        if not _begins_its_storage(partitioned, primal):
            message = (
                "the model uses as_strided with an offset from the start of the storage, and this tensor has a storage offset"
            )
            partitioned.refuse(source_line(node) or node.name, message)
        elif isinstance(primal, schema.InputPrimal):
            marked[primal.leaf] = msgspec.structs.replace(marked[primal.leaf], from_start=True)
    return marked


def refuse_shared_state(partitioned: PartitionedMethod) -> None:
    """Refuse a synthetic base made of parameters or buffers: arguments were traced as separate tensors."""
    if partitioned.joint.synthetic_bases:
        names = ", ".join(sorted(_in_shared_storage(partitioned.call.model)))
        partitioned.refuse(names or "state", "some of these parameters or buffers share memory, and the model writes to it")


def copy_of(partitioned: PartitionedMethod, primals: Primals, node: Node) -> Node:
    """Return a copy of ``node``, inserted right after its value is computed."""
    parts = subclass_leaves.plain(node)
    if parts != (node,):
        return subclass_leaves.folded_like(node, [copy_of(partitioned, primals, part) for part in parts])
    graph = partitioned.parts.forward.graph
    with graph.inserting_after(node if node.op != "placeholder" else primals.nodes[-1]):
        copy = graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta["val"] = node.meta["val"].clone()  # the copy is dense even if the tensor has gaps
    return copy


def _describe(partitioned: PartitionedMethod) -> list[schema.Primal | None]:
    """Describe AOTAutograd's inputs; None for one that a bundle does not know, which is refused."""
    params = dict(partitioned.call.model.named_parameters(remove_duplicate=False))
    bases, prefix = partitioned.call.arrangement.bases, partitioned.call.arrangement.prefix
    found: list[schema.Primal | None] = []
    for node, descriptor in zip(partitioned.parts.primals, partitioned.joint.primal_descriptors, strict=True):
        if isinstance(descriptor, desc.ParamAOTInput):
            name = descriptor.target.removeprefix(prefix)
            found.append(schema.ParameterPrimal(name))
            if name not in params:
                partitioned.refuse(name, "a parameter the model does not own")
        elif isinstance(descriptor, desc.BufferAOTInput):
            found.append(schema.BufferPrimal(descriptor.target.removeprefix(prefix)))
        elif isinstance(descriptor, desc.PlainAOTInput):
            leaf = descriptor.idx - len(bases)
            found.append(schema.InputPrimal(leaf) if leaf >= 0 else bases[descriptor.idx])
        else:
            found.append(None)
            partitioned.refuse(node.name, f"a graph input of kind {type(descriptor).__name__}")
    if None in found:
        partitioned.raise_problems()
    return found


def _path(partitioned: PartitionedMethod, inputs: Inputs, index: int) -> str:
    descriptor = partitioned.joint.primal_descriptors[index]
    bases = len(partitioned.call.arrangement.bases)
    if isinstance(descriptor, desc.PlainAOTInput) and descriptor.idx >= bases:
        return inputs.paths[descriptor.idx - bases]
    return str(getattr(descriptor, "target", None) or f"input {index}")


class _PrimalEditor:
    """The primals while the graphs' inputs are edited."""

    def __init__(self, partitioned: PartitionedMethod, inputs: Inputs, described: Sequence[schema.Primal | None]) -> None:
        self._partitioned = partitioned
        self.forward_outputs = list(partitioned.parts.forward_outputs)
        self.saved = list(partitioned.parts.saved)
        self.nodes: list[Node] = []
        self.described: list[schema.Primal] = []
        self.dropped: list[int] = []
        self.sizes: list[Node] = []
        for i, (node, primal) in enumerate(zip(partitioned.parts.primals, described, strict=True)):
            assert primal is not None
            if isinstance(node.meta.get("val"), torch.Tensor):
                self.nodes.append(node)
                self.described.append(primal)
                continue
            self.dropped.append(i)
            if isinstance(primal, schema.InputPrimal) and primal.leaf in inputs.varying:
                self.sizes.append(node)
            elif any(user.op != "output" for user in node.users):
                partitioned.refuse(source_line(node) or node.name, "a number argument that stayed symbolic")
            else:
                self._return_constant(node, primal)
                partitioned.parts.forward.graph.erase_node(node)

    def _return_constant(self, node: Node, primal: schema.Primal) -> None:
        """Replace a returned number argument by a constant result.

        Calls must pass the same value.
        """
        value = self._partitioned.call.leaves[primal.leaf] if isinstance(primal, schema.InputPrimal) else None
        self.forward_outputs = [value if out is node else out for out in self.forward_outputs]
        output = self._partitioned.parts.forward.graph.output_node()
        output.args = (tuple(None if arg is node else arg for arg in output.args[0]),)  # type: ignore[union-attr]

    def lift_constants(self, module: GraphModule) -> None:
        """Turn tensors that the forward graph closes over into primals."""
        for node, value in _closed_over(module):
            replacement = self._constant(node, value)
            node.replace_all_uses_with(replacement)
            module.graph.erase_node(node)
            self.forward_outputs = [replacement if out is node else out for out in self.forward_outputs]
            self.saved = [(replacement if value is node else value, to) for value, to in self.saved]

    def save_backward_constants(self, module: GraphModule) -> None:
        """Turn tensors that the backward graph closes over into primals, and save these for it."""
        graph = module.graph
        for node, value in _closed_over(module):
            primal = self._constant(node, value)
            existing = dict(self.saved).get(primal)
            if existing is None:
                with graph.inserting_before(next(iter(graph.nodes))):
                    existing = graph.placeholder(primal.name)
                existing.meta["val"] = primal.meta["val"]
                self.saved.append((primal, existing))
            node.replace_all_uses_with(existing)
            graph.erase_node(node)
        partition.order_placeholders(module, self.saved, self._partitioned.parts.tangents)

    def _constant(self, node: Node, value: torch.Tensor) -> Node:
        """Return the forward's input for a tensor that ``node`` reads, and add it if needed."""
        real = fake_tensors.real_tensor(value)
        if real is None:
            self._partitioned.refuse(source_line(node) or node.name, "a tensor whose value is only known while tracing")
            real = torch.zeros(())
        if value.requires_grad:
            message = "uses a tensor from outside that requires a gradient; make it a parameter or an argument"
            self._partitioned.refuse(source_line(node) or node.name, message)
        primal = schema.ConstantPrimal(self._partitioned.call.stored.add_constant(real), dtype_name(real.dtype), list(real.shape))
        if primal in self.described:
            return self.nodes[self.described.index(primal)]
        graph = self._partitioned.parts.forward.graph
        with graph.inserting_after(self.nodes[-1] if self.nodes else None):
            placeholder = graph.placeholder(f"constant_{len(self.described)}")
        if not self.nodes:
            next(iter(graph.nodes)).prepend(placeholder)
        placeholder.meta["val"] = node.meta.get("val", value)
        self.nodes.append(placeholder)
        self.described.append(primal)
        return placeholder


def _closed_over(module: GraphModule) -> Iterator[tuple[Node, torch.Tensor]]:
    """Yield the nodes of a graph that read a tensor of its module, with the tensors."""
    for node in module.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(str(node.target))(module)
        if isinstance(value, torch.Tensor):
            yield node, value


def _begins_its_storage(partitioned: PartitionedMethod, primal: schema.Primal) -> bool:
    if isinstance(primal, schema.InputPrimal):
        return not partitioned.call.leaves[primal.leaf].storage_offset()
    if isinstance(primal, (schema.ParameterPrimal, schema.BufferPrimal)):
        return not operator.attrgetter(primal.name)(partitioned.call.model).storage_offset()
    return isinstance(primal, schema.ConstantPrimal)  # stored with its own strides, from offset 0


def _in_shared_storage(model: torch.nn.Module) -> Iterator[str]:
    """Yield the names of parameters and buffers that share a storage with another."""
    state = [*model.named_parameters(), *model.named_buffers()]
    storages = Counter(tensor.untyped_storage().data_ptr() for _, tensor in state)
    yield from (name for name, tensor in state if storages[tensor.untyped_storage().data_ptr()] > 1)

"""Describes saved tensors, tangents and gradients: what passes between forward graph, autograd and backward graph."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from aotpack_loader.errors import Problem
from aotpack_loader.format import schema

from .. import _torch as compat
from .. import partition
from ..graph import source_line, tensor_value, views
from ..graph.expressions import size_expression
from . import subclass_leaves
from .context import tensor_of
from .outputs import FRESH, Outputs


class Backward(Outputs):
    """Computes the calling convention of the backward graph."""

    def _saved(self) -> list[schema.Saved]:
        if self.parts.backward is None:
            return []
        self._save_backward_constants()
        self._save_copies_of_what_is_overwritten()
        donated = self._donated()
        places = {
            part: schema.SavedPrimal(i, number if subclass_leaves.is_folded(primal) else None)
            for i, primal in enumerate(self.primal_nodes)
            for number, part in enumerate(subclass_leaves.plain(primal))
        }
        found: list[schema.Saved] = []
        for value, _ in self.parts.saved:
            kind = value.meta["val"]
            if not isinstance(kind, torch.Tensor):
                found.append(self._saved_size(value))
            elif value in places:
                found.append(places[value])
            else:
                output = self._output(value, fresh=False)
                check = not value.meta.get("saved_tensor_with_no_vc_check", False)
                found.append(schema.SavedOutput(output, check_version=check, donated=value in donated))
        return found

    def _saved_size(self, value: Node) -> schema.Saved:
        number = value.meta["val"]
        if not isinstance(number, torch.SymFloat) and self._is_known(size := size_expression(number, self.shape_env)):
            return schema.SavedSize(size)
        return schema.SavedOutput(self._output(value, fresh=False), check_version=False)

    def _save_copies_of_what_is_overwritten(self) -> None:
        """Save a copy of each saved value that shares storage with a primal which the call changes afterwards.

        The change is a write in the epilogue, or a raised version counter.
        """
        changed = {*self.metadata.mutated_inp_runtime_indices, *self._touched_inputs()}
        written = {part for index in changed for part in subclass_leaves.plain(self._raw_primal_nodes[index])}
        for i, (value, to) in enumerate(self.parts.saved):
            if isinstance(value.meta["val"], torch.Tensor) and views.root(value) in written:
                copy = self._copied(value)
                copy.meta["saved_tensor_with_no_vc_check"] = True
                to.meta = {**to.meta, "val": copy.meta["val"]}
                self.parts.saved[i] = (copy, to)

    def _save_backward_constants(self) -> None:
        """Save each constant that the backward uses as a primal."""
        assert self.parts.backward is not None
        graph = self.parts.backward.graph
        for node in graph.find_nodes(op="get_attr"):
            value = operator.attrgetter(str(node.target))(self.parts.backward)
            if not isinstance(value, torch.Tensor):
                continue
            primal = self.primal_nodes[self._constant_primal(node, value)]
            existing = dict(self.parts.saved).get(primal)
            if existing is None:
                with graph.inserting_before(next(iter(graph.nodes))):
                    existing = graph.placeholder(primal.name)
                existing.meta["val"] = primal.meta["val"]
                self.parts.saved.append((primal, existing))
            node.replace_all_uses_with(existing)
            graph.erase_node(node)
        partition.order_placeholders(self.parts)

    def _donated(self) -> set[Node]:
        """Return the saved tensors that share storage with nothing else.

        The backward may reuse their memory. Equal values have been merged into one node, and their
        recorded storages do not show it. So the roots of views are compared too.
        """
        others = subclass_leaves.flat(
            [*self.primal_nodes, *self.outputs, *(g for g in self.parts.gradients if isinstance(g, Node))]
        )
        taken = {compat.StorageWeakRef(value.untyped_storage()) for value in map(tensor_of, others) if value is not None}
        saved = [value for value, _ in self.parts.saved]
        roots = {views.origin(node) for node in others if isinstance(node, Node)}
        return {
            node
            for node in saved
            if views.origin(node) not in roots
            and (value := tensor_of(node)) is not None
            and compat.StorageWeakRef(value.untyped_storage()) not in taken
        }

    def _tangents(self, mutations: list[schema.Mutation]) -> list[schema.Tangent]:
        descriptors = self.metadata.traced_tangents_descs
        if self.parts.backward is None:
            return []
        found = []
        for node, descriptor in zip(self.tangents, descriptors, strict=True):
            value = node.meta["val"]
            output = self._tangent_output(descriptor, mutations)
            kind = tensor_value(value, self.shape_env)
            where = source_line(self.outputs[output]) or "the gradient of a result"
            static = all(isinstance(size, int) for size in (*kind.shape, *kind.stride))
            shape = kind.shape
            if not all(map(self._is_known, shape)):  # direct tracing renumbers data-dependent sizes in the joint graph
                shape = tensor_value(self.outputs[output].meta["val"], self.shape_env).shape
            if not all(map(self._is_known, shape)):
                self.problems.append(
                    Problem(f"result {output}", "requires a gradient, and its sizes depend on data in a way unknown")
                )
            found.append(
                schema.Tangent(
                    output=output,
                    dtype=kind.dtype,
                    shape=shape,
                    stride=kind.stride if static else None,
                    memory_format=_memory_format(value),
                    subclass=subclass_leaves.describe(node, where, self.shape_env),
                )
            )
        return found

    def _tangent_output(self, descriptor: Any, mutations: list[schema.Mutation]) -> int:
        """Return the index of the forward output that a tangent belongs to."""
        of = descriptor.output
        names = compat.desc
        metadata = self.metadata
        if isinstance(of, names.InputMutationAOTOutput):
            index = self.joint.primal_descriptors.index(of.mutated_input)
            return next(m.output for m in mutations if m.primal == self._primal_index(index))
        first = metadata.num_mutated_inp_runtime_indices
        if isinstance(of, names.PlainAOTOutput):
            node = self.parts.forward_outputs[first + of.idx]
            return self._position_of_result(of.idx, node)
        if isinstance(of, names.IntermediateBaseAOTOutput):
            bases = self.parts.forward_outputs[first + len(metadata.output_info) :]
            index = self._base_index(of)
            return self.outputs.index(bases[index])  # type: ignore[arg-type]
        self.problems.append(Problem("graph", f"a tangent of kind {type(of).__name__}"))
        return 0

    def _position_of_result(self, index: int, node: Any) -> int:
        """Return the output position of a result.

        Outputs are in order, so the n-th use of a node has its n-th position.
        """
        first = self.metadata.num_mutated_inp_runtime_indices
        earlier = sum(
            other is node and info.output_type in FRESH
            for other, info in zip(self.parts.forward_outputs[first : first + index], self.metadata.output_info, strict=False)
        )
        mutated = sum(output is node for output in self.parts.forward_outputs[:first])
        positions = [i for i, output in enumerate(self.outputs) if output is node]
        return positions[mutated + earlier]

    def _base_index(self, of: Any) -> int:
        """Return the index of a tangent's intermediate base: that of the result which first needed it."""
        return int(self.metadata.output_info[of.base_of.idx].base_idx)

    def _gradients(self) -> tuple[list[int | None], list[Node]]:
        """Return for each primal the position of its gradient among the backward's outputs, and these outputs."""
        backward = self.parts.backward
        kept: list[Node] = []
        if backward is None:
            return [], kept
        gradients: list[int | None] = []
        values = partition.output_args(backward)[: len(self.joint.primal_descriptors)]
        for i, value in enumerate(values):
            if i in self._dropped:
                continue
            if isinstance(value, Node):
                gradients.append(len(kept))
                kept.append(value)
            else:
                gradients.append(None)
        gradients += [None] * (len(self.primals) - len(gradients))
        return gradients, kept

    def _depends(self, gradients: list[Node]) -> list[list[int]]:
        """Return the tangents that each of ``gradients`` is computed from.

        Empty if each depends on all.
        """
        backward = self.parts.backward
        if backward is None or len(self.tangents) < 2:
            return []
        reach: dict[Node, frozenset[int]] = {
            part: frozenset([i]) for i, node in enumerate(self.tangents) for part in subclass_leaves.plain(node)
        }
        partition.spread(backward, reach)
        found = [sorted(reach[value]) for value in gradients]
        return [] if all(len(tangents) == len(self.tangents) for tangents in found) else found

    def _saved_bytes(self) -> int:
        """Return the bytes of saved activations at the example's sizes.

        Storages of primals do not count.
        """
        primals = {
            compat.StorageWeakRef(value.untyped_storage())
            for value in map(tensor_of, subclass_leaves.flat(self.primal_nodes))
            if value is not None
        }
        saved = [value.untyped_storage() for node, _ in self.parts.saved if (value := tensor_of(node)) is not None]
        kept = {compat.StorageWeakRef(storage): storage for storage in saved}
        return sum(compat.hint_of(storage.nbytes()) for key, storage in kept.items() if key not in primals)


def _storages(nodes: list[Node]) -> dict[compat.StorageWeakRef, torch.UntypedStorage]:
    tensors = [value for node in nodes if (value := tensor_of(node)) is not None]
    return {compat.StorageWeakRef(tensor.untyped_storage()): tensor.untyped_storage() for tensor in tensors}


def _memory_format(value: torch.Tensor) -> Any:
    if value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous():
        return "channels_last"
    if value.dim() == 5 and value.is_contiguous(memory_format=torch.channels_last_3d) and not value.is_contiguous():
        return "channels_last_3d"
    return "contiguous_format"

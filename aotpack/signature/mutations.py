"""Describes mutations: the values that the forward graph returns for the loader to write to arguments and state."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import Node

from aotpack_loader.errors import Problem
from aotpack_loader.format import schema

from .._torch.api import checkpoint as checkpoints
from ..graph import source_line, tensor_value, views
from .inputs import Inputs


class Mutations(Inputs):
    """Adds the values to write back to the forward's outputs. They come first."""

    def _mutations(self) -> list[schema.Mutation]:
        found = []
        for position, index in enumerate(self.metadata.mutated_inp_runtime_indices):
            info = self.metadata.input_info[index]
            node = self.parts.forward_outputs[position]
            if not isinstance(node, Node) or node is self._raw_primal_nodes[index]:
                continue
            kind = _mutation_kind(info)
            if kind == "storage":
                self.problems.append(Problem(self._primal_path(index), "the model replaces its storage (set_)"))
            elif kind in ("data", "data_and_metadata") and views.reach(node) > views.reach(self._raw_primal_nodes[index]):
                kind = "resize"
                if not node.meta["val"].is_contiguous():
                    self.problems.append(
                        Problem(self._primal_path(index), "the model grows it (resize_) and changes its strides")
                    )
            elif kind == "metadata" and self._grows_unwritten(index, node):
                message = (
                    f"the model grows it (resize_) and leaves the new elements unwritten; write to all of it: {source_line(node)}"
                )
                self.problems.append(Problem(self._primal_path(index), message))
            hidden = info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode
            geometry = self._geometry(index, node) if kind in ("metadata", "data_and_metadata") else None
            unread = kind == "metadata" and geometry is not None and geometry.absolute
            found.append(
                schema.Mutation(
                    primal=self._primal_index(index),
                    output=self._output(self._nothing(index) if unread else node, fresh=True),
                    kind=kind,
                    requires_grad=info.requires_grad and info.mutates_data,
                    hidden_from_autograd=hidden or self._is_leaf_with_gradient(index),
                    geometry=geometry,
                    unversioned=self._touches(index) is False,
                )
            )
            self._refuse_what_depends_on_the_offset(index, found[-1])
        for index, info in enumerate(self.metadata.input_info):
            if getattr(info, "mutation_inductor_storage_resize", False):
                self.problems.append(
                    Problem(self._primal_path(index), "the model resizes its storage (untyped_storage().resize_)")
                )
        return found

    def _grows_unwritten(self, index: int, node: Node) -> bool:
        """Whether ``resize_`` made the argument larger.

        Its value is then a copy, while other changes of sizes give a view.
        """
        source = self._raw_primal_nodes[index]
        return views.root(node) is not source and views.reach(node) > views.reach(source)

    def _geometry(self, index: int, node: Node) -> schema.Geometry:
        """Return an argument's sizes, strides and offset after the model changed them.

        In the trace it began at offset 0.
        """
        kind = tensor_value(node.meta["val"], self.shape_env)
        above = {*views.chain(node), self._raw_primal_nodes[index]}
        strided = [n for n in self.parts.forward.graph.nodes if n.target in views.AS_STRIDED and views.root(n) in above]
        absolute = any(len(n.args) > 3 for n in strided)
        return schema.Geometry(kind.shape, kind.stride, kind.offset, absolute)

    def _nothing(self, index: int) -> Node:
        """Return an empty tensor, as the output for a value that is not read.

        After ``as_strided_``, the value may use elements of the storage that the graph does not
        get in a call.
        """
        graph = self.parts.forward.graph
        source = self._raw_primal_nodes[index]
        with graph.inserting_before(graph.output_node()):
            node = graph.call_function(torch.ops.aten.new_empty.default, (source, [0]))
        node.meta["val"] = source.meta["val"].new_empty([0])
        return node

    def _is_leaf_with_gradient(self, index: int) -> bool:
        """Whether an argument is a leaf that requires a gradient.

        A write to it must have been hidden from autograd.
        """
        primal = self.primals[self._primal_index(index)]
        if not isinstance(primal, schema.InputPrimal):
            return False
        example = pytree.tree_leaves((self.args, self.kwargs))[primal.leaf]
        return bool(example.is_leaf and example.requires_grad)

    def _refuse_what_depends_on_the_offset(self, index: int, mutation: schema.Mutation) -> None:
        primal = self.primals[mutation.primal]
        if mutation.kind == "metadata" or mutation.geometry is None or not isinstance(primal, schema.InputPrimal):
            return
        example = pytree.tree_leaves((self.args, self.kwargs))[primal.leaf]
        if mutation.geometry.absolute and example.storage_offset():
            message = "begins inside its storage, and the model writes to it through as_strided_, which counts from the start"
            self.problems.append(Problem(self._primal_path(index), message))

    def _written_in_checkpoints(self) -> list[str]:
        """Return the paths of what is written inside a checkpoint.

        Eager writes again when it recomputes.
        """
        written = zip(self.parts.forward_outputs, self.metadata.mutated_inp_runtime_indices, strict=False)
        return [self._primal_path(index) for node, index in written if isinstance(node, Node) and checkpoints.is_recomputed(node)]

    def _touched(self, mutations: list[schema.Mutation]) -> list[int]:
        """Return the primals whose version counter moves although nothing is written to them.

        The model calls an in-place operator that has no effect, or changes the sizes of a view or
        a detached alias.
        """
        written = {mutation.primal for mutation in mutations}
        return [p for p in map(self._primal_index, self._touched_inputs()) if p not in written]

    def _touched_inputs(self) -> list[int]:
        """Return the indices of AOTAutograd's inputs whose version counter eager moves."""
        return [i for i in range(len(self._raw_primal_nodes)) if i not in self._dropped and self._touches(i)]

    def _touches(self, index: int) -> bool | None:
        """Whether eager moves the version counter of AOTAutograd's input ``index``.

        None if unknown, or for a base.
        """
        primal = self.primals[self._primal_index(index)]
        of_bases = not isinstance(primal, (schema.InputPrimal, schema.ParameterPrimal, schema.BufferPrimal))
        return None if of_bases else self.joint.touches(self.joint.primal_descriptors[index])


def _mutation_kind(info: Any) -> Any:
    if info.mutates_storage_metadata:
        return "storage"
    if info.mutates_data and info.mutates_metadata:
        return "data_and_metadata"
    return "data" if info.mutates_data else "metadata"

"""Describes arguments and primals: the inputs of a call and of the forward graph."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule, Node

from aotpack_loader.errors import Problem
from aotpack_loader.format import schema

from .. import _torch as compat
from ..capture.inputs.examples import argument_names
from ..graph import source_line, tensor_value, views
from ..graph.expressions import size_expression
from ..graph.literals import NOT_A_LITERAL, dtype_name, literal_argument
from ..model import pytrees, subclasses
from . import subclass_leaves as folding
from .context import Context


class Inputs(Context):
    """Describes the caller's arguments and the source of each input of the forward graph."""

    def _refuse_what_is_not_carried(self) -> None:
        metadata = self.metadata
        if self.joint.synthetic_bases:  # of parameters or buffers: arguments were traced as separate tensors
            names = ", ".join(sorted(_in_shared_storage(self.model)))
            message = "some of these parameters or buffers share memory, and the model writes to it"
            self.problems.append(Problem(names or "state", message))
        if metadata.num_outputs_rng_offset or metadata.is_rng_op_functionalized:
            self.problems.append(Problem("graph", "functionalised random state"))
        if metadata.grad_enabled_mutation is not None:
            self.problems.append(Problem("model", "leaves gradient mode changed when it returns"))

    def _inputs(self) -> tuple[schema.Tree, list[schema.InputLeaf]]:
        flat, spec = pytree.tree_flatten((self.args, self.kwargs))
        args_spec, kwargs_spec = compat.tree_children(spec)
        args_tree, args_paths = pytrees.describe_arguments(args_spec, argument_names(self.model, len(self.args)))
        kwargs_tree, kwargs_paths = pytrees.describe_arguments(kwargs_spec, [*self.kwargs])
        paths = self._leaf_paths = args_paths + kwargs_paths
        nodes = {
            d.idx - len(self.arrangement.bases): node
            for d, node in zip(self.joint.primal_descriptors, self.primal_nodes, strict=False)
            if isinstance(d, compat.desc.PlainAOTInput)
        }
        self._varying = self._varying_integers(nodes)
        leaves = [self._leaf(i, value, path, nodes) for i, (value, path) in enumerate(zip(flat, paths, strict=True))]
        return schema.TupleNode([args_tree, kwargs_tree]), leaves

    def _varying_integers(self, nodes: Mapping[int, Node]) -> dict[int, str]:
        """Return the dynamic integer arguments: a map from leaf number to symbol."""
        found = {
            i: size_expression(node.meta["val"], self.shape_env)
            for i, node in nodes.items()
            if compat.is_varying_integer(node.meta.get("val"))
        }
        return {i: size for i, size in found.items() if isinstance(size, str)}

    def _leaf(self, i: int, value: Any, path: str, nodes: Mapping[int, Node]) -> schema.InputLeaf:
        size = self._varying.get(i)
        if size is not None:
            return schema.IntegerLeaf(path, size)
        if not isinstance(value, torch.Tensor):
            literal = literal_argument(value)
            if literal is NOT_A_LITERAL:
                self.problems.append(Problem(path, f"an argument of type {type(value).__name__}"))
                literal = None
            return schema.ConstantLeaf(path, literal)
        node = nodes.get(i)
        kind = tensor_value(value if node is None else node.meta["val"], self.shape_env)
        subclass = None if node is None else folding.describe(node, path, self.shape_env)
        subclass = subclass or subclasses.describe(value, path, self.shape_env)
        stride = None if node is not None and _has_free_strides(node) else kind.stride
        return schema.TensorLeaf(
            path, kind.dtype, kind.shape, stride, value.device.type, requires_grad=value.requires_grad, subclass=subclass
        )

    def _primals(self) -> None:
        params = dict(self.model.named_parameters(remove_duplicate=False))
        bases, prefix = self.arrangement.bases, self.arrangement.prefix
        for node, descriptor in zip(self.primal_nodes, self.joint.primal_descriptors, strict=True):
            if isinstance(descriptor, compat.desc.ParamAOTInput):
                name = descriptor.target.removeprefix(prefix)
                self.primals.append(schema.ParameterPrimal(name))
                if name not in params:
                    self.problems.append(Problem(name, "a parameter the model does not own"))
            elif isinstance(descriptor, compat.desc.BufferAOTInput):
                self.primals.append(schema.BufferPrimal(descriptor.target.removeprefix(prefix)))
            elif isinstance(descriptor, compat.desc.PlainAOTInput):
                leaf = descriptor.idx - len(bases)
                self.primals.append(schema.InputPrimal(leaf) if leaf >= 0 else bases[descriptor.idx])
            else:
                self.problems.append(Problem(node.name, f"a graph input of kind {type(descriptor).__name__}"))
        self._drop_constant_inputs()

    def _with_starts(self, leaves: list[schema.InputLeaf]) -> list[schema.InputLeaf]:
        """Mark the arguments that ``as_strided`` reads with an offset.

        In the trace they had a storage offset of 0.
        """
        inputs = {node: i for i, node in enumerate(self.primal_nodes)}
        inputs |= {placeholder: inputs[value] for value, placeholder in self.parts.saved if value in inputs}
        graphs = [self.parts.forward.graph, *([] if self.parts.backward is None else [self.parts.backward.graph])]
        reads = {
            inputs[start]: node
            for graph in graphs
            for node in graph.nodes
            if node.target in views.AS_STRIDED and len(node.args) > 3 and (start := views.root(node.args[0])) in inputs
        }
        for i, node in reads.items():
            primal = self.primals[i]
            if self._begins_its_storage(primal):
                if isinstance(primal, schema.InputPrimal):
                    leaves[primal.leaf] = msgspec.structs.replace(leaves[primal.leaf], from_start=True)
            else:
                message = "as_strided with an offset counts from the start of a storage, and this tensor begins inside one"
                self.problems.append(Problem(source_line(node) or node.name, message))
        return leaves

    def _begins_its_storage(self, primal: schema.Primal) -> bool:
        if isinstance(primal, schema.InputPrimal):
            return not self._example(primal).storage_offset()
        if isinstance(primal, (schema.ParameterPrimal, schema.BufferPrimal)):
            return not operator.attrgetter(primal.name)(self.model).storage_offset()
        return isinstance(primal, schema.ConstantPrimal)  # stored with its own strides, from offset 0

    def _example(self, primal: schema.InputPrimal) -> torch.Tensor:
        return pytree.tree_leaves((self.args, self.kwargs))[primal.leaf]  # type: ignore[no-any-return]

    def _drop_constant_inputs(self) -> None:
        """Remove non-tensor arguments from the graph's inputs, because the graph is specialised to their values."""
        kept = []
        for node, primal in zip(self.primal_nodes, self.primals, strict=True):
            if isinstance(node.meta.get("val"), torch.Tensor):
                kept.append((node, primal))
            elif isinstance(primal, schema.InputPrimal) and primal.leaf in self._varying:
                self.sizes.append(node)
            elif any(user.op != "output" for user in node.users):
                self.problems.append(Problem(source_line(node) or node.name, "a number argument that stayed symbolic"))
            else:
                self._return_constant(node, primal)
                self.parts.forward.graph.erase_node(node)
        self._dropped = [i for i, node in enumerate(self.primal_nodes) if not isinstance(node.meta.get("val"), torch.Tensor)]
        self.primal_nodes = [node for node, _ in kept]
        self.primals = [primal for _, primal in kept]

    def _return_constant(self, node: Node, primal: schema.Primal) -> None:
        """Replace a returned number argument by a constant result.

        Calls must pass the same value.
        """
        flat = pytree.tree_leaves((self.args, self.kwargs))
        value = flat[primal.leaf] if isinstance(primal, schema.InputPrimal) else None
        self.parts.forward_outputs = [value if out is node else out for out in self.parts.forward_outputs]
        output = self.parts.forward.graph.output_node()
        output.args = (tuple(None if arg is node else arg for arg in output.args[0]),)  # type: ignore[union-attr]

    def _lift_constants(self, module: GraphModule) -> None:
        """Turn tensors that a graph closes over into primals, after the others."""
        for node in module.graph.find_nodes(op="get_attr"):
            value = operator.attrgetter(str(node.target))(module)
            if not isinstance(value, torch.Tensor):
                continue
            index = self._constant_primal(node, value)
            replacement = self.primal_nodes[index]
            node.replace_all_uses_with(replacement)
            module.graph.erase_node(node)
            self.parts.forward_outputs = [replacement if out is node else out for out in self.parts.forward_outputs]
            self.parts.saved = [(replacement if value is node else value, to) for value, to in self.parts.saved]

    def _constant_primal(self, node: Node, value: torch.Tensor) -> int:
        real = compat.real_tensor(value)
        if real is None:
            self.problems.append(Problem(source_line(node) or node.name, "a tensor whose value is only known while tracing"))
            real = torch.zeros(())
        if value.requires_grad:
            self.problems.append(
                Problem(
                    source_line(node) or node.name,
                    "closes over a tensor that requires a gradient; make it a parameter or an argument",
                )
            )
        primal = schema.ConstantPrimal(self.stored.add_constant(real), dtype_name(real.dtype), list(real.shape))
        if primal in self.primals:
            return self.primals.index(primal)
        graph = self.parts.forward.graph
        with graph.inserting_after(self.primal_nodes[-1] if self.primal_nodes else None):
            placeholder = graph.placeholder(f"constant_{len(self.primals)}")
        if not self.primal_nodes:
            next(iter(graph.nodes)).prepend(placeholder)
        placeholder.meta["val"] = node.meta.get("val", value)
        self.primal_nodes.append(placeholder)
        self.primals.append(primal)
        return len(self.primals) - 1


def _has_free_strides(node: Node) -> bool:
    """Whether nothing reads an argument and its strides have symbols that its sizes do not have.

    Dynamo keeps the strides of a slice symbolic until they matter.
    """
    value: torch.Tensor = node.meta["val"]
    return not node.users and bool(compat.symbols_in(value.stride()) - compat.symbols_in(value.shape))


def _in_shared_storage(model: torch.nn.Module) -> Iterator[str]:
    """Yield the names of parameters and buffers that share a storage with another."""
    state = [*model.named_parameters(), *model.named_buffers()]
    storages = Counter(tensor.untyped_storage().data_ptr() for _, tensor in state)
    yield from (name for name, tensor in state if storages[tensor.untyped_storage().data_ptr()] > 1)

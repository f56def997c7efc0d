"""AOTAutograd's metadata as plain data: what surrounds the graphs of one method.

Takes a partitioned joint graph and gives the method's graphs in the bundle's calling convention together with
everything the loader must do around them. What AOTAutograd knows and a bundle cannot express is refused here.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule, Node

from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import expressions, schema

from . import _torch_compat as compat
from . import partition, trees, views
from .expressions import bound, render, size_expression
from .graph import NOT_A_LITERAL, literal_argument, source_line, tensor_value
from .state import StoredTensors, dtype_name

_OUT = compat.OutputType


@dataclass
class Convention:
    """A method without its graphs' descriptors, and the two graphs that follow it."""

    forward: GraphModule
    backward: GraphModule | None
    method: Mapping[str, Any]
    saved: list[schema.Saved]
    tangents: list[schema.Tangent]
    gradients: list[int | None]
    depends: list[list[int]]
    shape_env: compat.ShapeEnv | None
    saved_bytes: int


def assemble(
    joint: compat.Joint,
    parts: partition.Partitioned,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    stored: StoredTensors,
) -> Convention:
    """Work out the calling convention of one method.

    Raises:
        UnsupportedError: names every construct a bundle cannot keep true.
    """
    return _Assembler(joint, parts, model, args, kwargs, stored).run()


class _Assembler:
    def __init__(
        self,
        joint: compat.Joint,
        parts: partition.Partitioned,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stored: StoredTensors,
    ) -> None:
        self.joint, self.parts, self.model, self.stored = joint, parts, model, stored
        self.args, self.kwargs = args, kwargs
        self.metadata = joint.metadata
        self.shape_env = joint.shape_env
        self.primal_nodes: list[Node] = parts.forward.graph.find_nodes(op="placeholder")
        self._raw_primal_nodes = list(self.primal_nodes)
        self.primals: list[schema.Primal] = []
        self.outputs: list[Node] = []
        self.problems: list[Problem] = []

    def run(self) -> Convention:
        self._refuse_what_is_not_carried()
        self._raise_problems()
        tree, leaves = self._inputs()
        self._primals()
        self._lift_constants(self.parts.forward)
        self._bound = {s for leaf in leaves if isinstance(leaf, schema.TensorLeaf) for s in self._symbols_in(leaf.shape)}
        mutations = self._mutations()
        results = self._results()
        visible = len(self.outputs)
        saved = self._saved()
        tangents = self._tangents(mutations)
        gradients, backward = self._gradients()
        self._raise_problems()
        partition.set_outputs(self.parts.forward, list(self.outputs))
        out_tree, _ = trees.describe(self.joint.out_spec, "result")
        method = {
            "inputs": tree,
            "leaves": leaves,
            "outputs": out_tree,
            "results": results,
            "primals": self.primals,
            "num_outputs": len(self.outputs),
            "symbols": self._symbols(leaves),
            "constraints": self._constraints(),
            "mutations": mutations,
            "non_differentiable": self._non_differentiable(mutations, results, visible),
        }
        depends = self._depends()
        return Convention(
            self.parts.forward, backward, method, saved, tangents, gradients, depends, self.shape_env, self._saved_bytes()
        )

    def _raise_problems(self) -> None:
        if self.problems:
            raise UnsupportedError("The model does something that a bundle cannot keep true.", self.problems)

    # -------------------------------------------------------------- inputs

    def _refuse_what_is_not_carried(self) -> None:
        metadata = self.metadata
        if self.joint.deduplicated:
            self.problems.append(Problem("example inputs", "the same tensor is passed in two places"))
        if self.joint.synthetic_bases:
            self.problems.append(Problem("example inputs", "two arguments share memory and the model writes to it"))
        if metadata.tokens or metadata.num_backward_tokens:
            self.problems.append(Problem("graph", "an operator with side effects (effect tokens)"))
        if metadata.num_outputs_rng_offset or metadata.is_rng_op_functionalized:
            self.problems.append(Problem("graph", "functionalised random state"))
        if metadata.grad_enabled_mutation is not None:
            self.problems.append(Problem("model", "leaves gradient mode changed when it returns"))

    def _inputs(self) -> tuple[schema.Tree, list[schema.InputLeaf]]:
        flat, spec = pytree.tree_flatten((self.args, self.kwargs))
        args_spec, kwargs_spec = compat.tree_children(spec)
        args_tree, args_paths = trees.describe(args_spec, "args")
        kwargs_tree, kwargs_paths = trees.describe(kwargs_spec, "kwargs")
        paths = args_paths + [_keyword_path(path) for path in kwargs_paths]
        fakes = {
            getattr(d, "idx", None): node.meta.get("val")
            for d, node in zip(self.joint.primal_descriptors, self.primal_nodes, strict=False)
            if isinstance(d, compat.desc.PlainAOTInput)
        }
        leaves = [self._leaf(i, value, path, fakes) for i, (value, path) in enumerate(zip(flat, paths, strict=True))]
        return schema.TupleNode([args_tree, kwargs_tree]), leaves

    def _leaf(self, i: int, value: Any, path: str, fakes: Mapping[Any, Any]) -> schema.InputLeaf:
        if not isinstance(value, torch.Tensor):
            literal = literal_argument(value)
            if literal is NOT_A_LITERAL:
                self.problems.append(Problem(path, f"an argument of type {type(value).__name__}"))
                literal = None
            return schema.ConstantLeaf(path, literal)
        kind = tensor_value(fakes.get(i, value), self.shape_env)
        return schema.TensorLeaf(path, kind.dtype, kind.shape, kind.stride, value.device.type, requires_grad=value.requires_grad)

    def _primals(self) -> None:
        params = dict(self.model.named_parameters(remove_duplicate=False))
        for node, descriptor in zip(self.primal_nodes, self.joint.primal_descriptors, strict=True):
            if isinstance(descriptor, compat.desc.ParamAOTInput):
                self.primals.append(schema.ParameterPrimal(descriptor.target))
                if descriptor.target not in params:
                    self.problems.append(Problem(descriptor.target, "a parameter the model does not own"))
            elif isinstance(descriptor, compat.desc.BufferAOTInput):
                self.primals.append(schema.BufferPrimal(descriptor.target))
            elif isinstance(descriptor, compat.desc.PlainAOTInput):
                self.primals.append(schema.InputPrimal(descriptor.idx))
            else:
                self.problems.append(Problem(node.name, f"a graph input of kind {type(descriptor).__name__}"))
        self._drop_constant_inputs()

    def _drop_constant_inputs(self) -> None:
        """Non-tensor arguments were specialised: they are no inputs of the graph."""
        kept = []
        for node, primal in zip(self.primal_nodes, self.primals, strict=True):
            if isinstance(node.meta.get("val"), torch.Tensor):
                kept.append((node, primal))
            elif any(user.op != "output" for user in node.users):
                self.problems.append(Problem(source_line(node) or node.name, "a number argument that stayed symbolic"))
            else:
                self._return_constant(node, primal)
                self.parts.forward.graph.erase_node(node)
        self._dropped = [i for i, node in enumerate(self.primal_nodes) if not isinstance(node.meta.get("val"), torch.Tensor)]
        self.primal_nodes = [node for node, _ in kept]
        self.primals = [primal for _, primal in kept]

    def _return_constant(self, node: Node, primal: schema.Primal) -> None:
        """A number argument that is returned is a constant result: calls must pass the same value."""
        flat = pytree.tree_leaves((self.args, self.kwargs))
        value = flat[primal.leaf] if isinstance(primal, schema.InputPrimal) else None
        self.parts.forward_outputs = [value if out is node else out for out in self.parts.forward_outputs]
        output = self.parts.forward.graph.output_node()
        output.args = (tuple(None if arg is node else arg for arg in output.args[0]),)  # type: ignore[union-attr]

    def _lift_constants(self, module: GraphModule) -> None:
        """Turn tensors a graph closes over into primals at the end."""
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

    # -------------------------------------------------------------- outputs

    def _output(self, node: Node, *, fresh: bool) -> int:
        """Position of ``node`` among the graph's outputs; ``fresh``: a position of its own."""
        if not fresh and node in self.outputs:
            return self.outputs.index(node)
        self.outputs.append(node)
        return len(self.outputs) - 1

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
            elif _storage_bytes(node) > _storage_bytes(self._raw_primal_nodes[index]):
                self.problems.append(Problem(self._primal_path(index), "the model grows its storage (resize_)"))
            hidden = info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode
            found.append(
                schema.Mutation(
                    primal=self._primal_index(index),
                    output=self._output(node, fresh=True),
                    kind=kind,
                    requires_grad=info.requires_grad and info.mutates_data,
                    hidden_from_autograd=hidden,
                )
            )
        return found

    def _primal_index(self, index: int) -> int:
        """Position among the kept primals of AOTAutograd's input ``index``."""
        return index - sum(dropped < index for dropped in self._dropped)

    def _primal_path(self, index: int) -> str:
        descriptor = self.joint.primal_descriptors[index]
        return str(getattr(descriptor, "target", None) or f"input {getattr(descriptor, 'idx', index)}")

    def _results(self) -> list[schema.Result]:
        metadata = self.metadata
        first = metadata.num_mutated_inp_runtime_indices
        count = len(metadata.output_info)
        nodes = self.parts.forward_outputs[first : first + count]
        bases = self.parts.forward_outputs[first + count :]
        placed: dict[int, int] = {}
        results: list[schema.Result | None] = [None] * count
        for i, (info, node) in enumerate(zip(metadata.output_info, nodes, strict=True)):
            results[i] = self._plain_result(info, node, placed, i)
        base_positions = [self._output(base, fresh=True) for base in bases if isinstance(base, Node)]
        for i, (info, node) in enumerate(zip(metadata.output_info, nodes, strict=True)):
            if results[i] is None and isinstance(node, Node):
                results[i] = self._alias_of_intermediate(info, node, nodes, bases, base_positions, placed)
        return [result for result in results if result is not None]

    def _plain_result(self, info: Any, node: Any, placed: dict[int, int], i: int) -> schema.Result | None:
        if not isinstance(node, Node):
            return self._literal_result(node)
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            size = size_expression(value, self.shape_env)
            known = isinstance(size, int) or self._symbols_in([size]) <= self._bound
            return schema.SizeResult(size) if known else schema.FreshResult(self._output(node, fresh=True))
        if info.output_type in (_OUT.non_alias, _OUT.unsafe_view_alias, _OUT.custom_function_view):
            if node in self.primal_nodes:
                if self.parts.backward is None:
                    return schema.InputResult(self.primal_nodes.index(node))
                node = self._copied(node)
                self.parts.forward_outputs[self.metadata.num_mutated_inp_runtime_indices + i] = node
            placed[i] = self._output(node, fresh=True)
            # Autograd knows several views made at once as such, and refuses in-place changes of them as eager does.
            unviewed = info.output_type == _OUT.unsafe_view_alias and node.target is not operator.getitem
            return schema.FreshResult(placed[i], requires_grad=info.requires_grad, unviewed=unviewed)
        if info.output_type == _OUT.is_input:
            return schema.InputResult(self._primal_index(info.base_idx))
        if info.output_type == _OUT.alias_of_input:
            return self._alias_of_input(info, node)
        return None

    def _literal_result(self, value: Any) -> schema.Result:
        if isinstance(value, torch.SymInt):
            return schema.SizeResult(size_expression(value, self.shape_env))
        literal = literal_argument(value)
        if literal is NOT_A_LITERAL:
            self.problems.append(Problem("result", f"returns a {type(value).__name__}"))
            literal = None
        return schema.ConstantResult(literal)

    def _alias_of_input(self, info: Any, node: Node) -> schema.Result:
        index = self._primal_index(info.base_idx)
        source: Node = self.primal_nodes[index]
        updated = self._updated_value(info.base_idx)
        steps = None
        for base in filter(None, (updated, source)):
            steps = steps or views.steps_between(base, node, self.shape_env)
        if steps is None:
            steps = views.as_strided_step(node.meta["val"], self.shape_env)
        return schema.AliasResult(steps, primal=index, requires_grad=info.requires_grad, history=_has_history(info))

    def _copied(self, node: Node) -> Node:
        """A copy of ``node``, made where its value is first known."""
        graph = self.parts.forward.graph
        anchor = node if node.op != "placeholder" else self.primal_nodes[-1]
        with graph.inserting_after(anchor):
            copy = graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta["val"] = node.meta["val"]
        return copy

    def _updated_value(self, index: int) -> Node | None:
        mutated = self.metadata.mutated_inp_runtime_indices
        if index not in mutated:
            return None
        value = self.parts.forward_outputs[mutated.index(index)]
        return value if isinstance(value, Node) else None

    def _alias_of_intermediate(
        self,
        info: Any,
        node: Node,
        nodes: list[Any],
        bases: list[Any],
        base_positions: list[int],
        placed: dict[int, int],
    ) -> schema.Result:
        if info.output_type == _OUT.alias_of_intermediate_base_is_user_output:
            base, position = nodes[info.base_idx], placed[info.base_idx]
        else:
            base, position = bases[info.base_idx], base_positions[info.base_idx]
        steps = views.steps_between(base, node, self.shape_env)
        if steps is None:
            steps = views.as_strided_step(node.meta["val"], self.shape_env)
        return schema.AliasResult(steps, output=position, requires_grad=info.requires_grad, history=_has_history(info))

    def _non_differentiable(self, mutations: list[schema.Mutation], results: list[schema.Result], visible: int) -> list[int]:
        """Outputs handed to autograd that carry no gradient. Intermediate bases always do."""
        differentiable = {m.output for m in mutations if m.requires_grad}
        plain = {m.output for m in mutations}
        for result in results:
            if isinstance(result, schema.FreshResult):
                plain.add(result.output)
                if result.requires_grad:
                    differentiable.add(result.output)
        return sorted(plain - differentiable)

    # -------------------------------------------------------------- backward

    def _saved(self) -> list[schema.Saved]:
        if self.parts.backward is None:
            return []
        self._save_backward_constants()
        self._save_copies_of_what_is_overwritten()
        donated = self._donated()
        found: list[schema.Saved] = []
        for value, _ in self.parts.saved:
            kind = value.meta["val"]
            if not isinstance(kind, torch.Tensor):
                found.append(self._saved_size(value))
            elif value in self.primal_nodes:
                found.append(schema.SavedPrimal(self.primal_nodes.index(value)))
            else:
                output = self._output(value, fresh=False)
                check = not value.meta.get("saved_tensor_with_no_vc_check", False)
                found.append(schema.SavedOutput(output, check_version=check, donated=value in donated))
        return found

    def _saved_size(self, value: Node) -> schema.Saved:
        size = size_expression(value.meta["val"], self.shape_env)
        if isinstance(size, int) or self._symbols_in([size]) <= self._bound:
            return schema.SavedSize(size)
        return schema.SavedOutput(self._output(value, fresh=False), check_version=False)

    def _save_copies_of_what_is_overwritten(self) -> None:
        """A saved value in the memory of a primal that the epilogue writes to is saved as a copy."""
        written = {self._raw_primal_nodes[index] for index in self.metadata.mutated_inp_runtime_indices}
        for i, (value, to) in enumerate(self.parts.saved):
            if isinstance(value.meta["val"], torch.Tensor) and views.root(value) in written:
                copy = self._copied(value)
                copy.meta["saved_tensor_with_no_vc_check"] = True
                self.parts.saved[i] = (copy, to)

    def _save_backward_constants(self) -> None:
        """A constant the backward uses is saved as the primal it has become."""
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
        """Saved tensors that share memory with nothing else: the backward may reuse them."""
        others = [*self.primal_nodes, *self.outputs, *(g for g in self.parts.gradients if isinstance(g, Node))]
        taken = {compat.StorageWeakRef(value.untyped_storage()) for value in map(_tensor_of, others) if value is not None}
        saved = [value for value, _ in self.parts.saved]
        return {
            node
            for node in saved
            if (value := _tensor_of(node)) is not None and compat.StorageWeakRef(value.untyped_storage()) not in taken
        }

    def _tangents(self, mutations: list[schema.Mutation]) -> list[schema.Tangent]:
        descriptors = self.metadata.traced_tangents_descs
        if self.parts.backward is None:
            return []
        found = []
        for node, descriptor in zip(self.parts.tangents, descriptors, strict=True):
            value = node.meta["val"]
            output = self._tangent_output(descriptor, mutations)
            kind = tensor_value(value, self.shape_env)
            static = all(isinstance(size, int) for size in (*kind.shape, *kind.stride))
            found.append(
                schema.Tangent(
                    output=output,
                    dtype=kind.dtype,
                    shape=kind.shape,
                    stride=kind.stride if static else None,
                    memory_format=_memory_format(value),
                )
            )
        return found

    def _tangent_output(self, descriptor: Any, mutations: list[schema.Mutation]) -> int:
        """Which forward output a tangent belongs to."""
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
        """Outputs are placed in order, so the n-th use of a node has the n-th of its positions."""
        first = self.metadata.num_mutated_inp_runtime_indices
        earlier = sum(
            other is node and info.output_type in (_OUT.non_alias, _OUT.unsafe_view_alias, _OUT.custom_function_view)
            for other, info in zip(self.parts.forward_outputs[first : first + index], self.metadata.output_info, strict=False)
        )
        mutated = sum(output is node for output in self.parts.forward_outputs[:first])
        positions = [i for i, output in enumerate(self.outputs) if output is node]
        return positions[mutated + earlier]

    def _base_index(self, of: Any) -> int:
        """Intermediate bases are numbered in the order in which results first need them."""
        seen: list[int | None] = []
        for info in self.metadata.output_info:
            needs_base = info.output_type in (_OUT.alias_of_intermediate, _OUT.alias_of_intermediate_save_as_output)
            if needs_base and info.base_idx not in seen:
                seen.append(info.base_idx)
        owner = self.metadata.output_info[of.base_of.idx]
        return int(owner.base_idx)

    def _gradients(self) -> tuple[list[int | None], GraphModule | None]:
        backward = self.parts.backward
        if backward is None:
            return [], None
        kept: list[Node] = []
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
        partition.set_outputs(backward, list(kept))
        return gradients, backward

    def _depends(self) -> list[list[int]]:
        """Tangents each backward output is computed from; empty where each depends on all."""
        backward = self.parts.backward
        if backward is None or len(self.parts.tangents) < 2:
            return []
        reach: dict[Node, frozenset[int]] = {node: frozenset([i]) for i, node in enumerate(self.parts.tangents)}
        for node in backward.graph.nodes:
            if node not in reach:
                reach[node] = frozenset().union(*(reach[source] for source in node.all_input_nodes))
        found = [sorted(reach[value]) for value in partition.output_args(backward) if isinstance(value, Node)]
        return [] if all(len(tangents) == len(self.parts.tangents) for tangents in found) else found

    def _saved_bytes(self) -> int:
        """Bytes of activations the forward keeps, primals not counted, at the example's sizes."""
        total = 0
        for value, _ in self.parts.saved:
            tensor = _tensor_of(value)
            if tensor is not None and value not in self.primal_nodes:
                total += compat.hint_numel(tensor) * tensor.element_size()
        return total

    # -------------------------------------------------------------- shapes

    def _symbols(self, leaves: list[schema.InputLeaf]) -> list[schema.Symbol]:
        if self.shape_env is None:
            return []
        names = {dim for leaf in leaves if isinstance(leaf, schema.TensorLeaf) for dim in leaf.shape if isinstance(dim, str)}
        env = self.shape_env
        symbols = []
        for symbol in sorted({s for name in names for s in compat.symbols_of(env, name)}, key=str):
            if str(symbol) not in names:
                self.problems.append(Problem(str(symbol), "a size that appears only inside an expression"))
                continue
            limits = env.var_to_range[symbol]
            symbols.append(schema.Symbol(str(symbol), bound(limits.lower) or 0, bound(limits.upper), compat.hint(env, symbol)))
        return symbols

    def _symbols_in(self, sizes: list[schema.Dim]) -> set[str]:
        """Names of the symbols in sizes."""
        return {name for size in sizes if isinstance(size, str) for name in expressions.symbols(size)}

    def _constraints(self) -> list[str]:
        if self.shape_env is None:
            return []
        found = [self.shape_env.simplify(guard.expr) for guard in self.shape_env.guards]
        return sorted({render(expr) for expr in found if not expr.is_Boolean or expr not in (True, False)} - {"True"})


def _keyword_path(path: str) -> str:
    """``kwargs['y'][0]`` stays as it is: the argument's name is in it."""
    return path


def _tensor_of(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _storage_bytes(node: Node) -> int:
    tensor = _tensor_of(node)
    return 0 if tensor is None else compat.hint_of(tensor.untyped_storage().nbytes())


def _has_history(info: Any) -> bool:
    """False for a view taken with gradients off: it inherits ``requires_grad`` and has no history."""
    return compat.participates_in_backward(info) or not info.requires_grad


def _mutation_kind(info: Any) -> Any:
    if info.mutates_storage_metadata:
        return "storage"
    if info.mutates_data and info.mutates_metadata:
        return "data_and_metadata"
    return "data" if info.mutates_data else "metadata"


def _memory_format(value: torch.Tensor) -> Any:
    if value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous():
        return "channels_last"
    if value.dim() == 5 and value.is_contiguous(memory_format=torch.channels_last_3d) and not value.is_contiguous():
        return "channels_last_3d"
    return "contiguous_format"

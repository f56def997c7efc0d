"""Converts counters of loops and numbers read from tensors to 0-dimensional tensors.

XLA has no dynamic numbers, and code for a GPU would wait for them.

Sizes stay numbers. An operator that uses such a number as a size keeps its dynamic type, and is
rejected for it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from aotpack_loader.errors import Problem, UnsupportedError

from .._torch.api.fake_tensors import fake_mode_of, fake_results
from ..graph import source_line
from .nested import copy_of, regions

aten = torch.ops.aten

_OPERATORS: dict[Callable[..., Any], torch._ops.OpOverload] = {
    operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor,
    operator.mul: aten.mul.Tensor,
    operator.truediv: aten.div.Tensor,
    operator.floordiv: aten.floor_divide.default,
    operator.mod: aten.remainder.Tensor,
    operator.pow: aten.pow.Tensor_Tensor,
    operator.neg: aten.neg.default,
    operator.lt: aten.lt.Tensor,
    operator.le: aten.le.Tensor,
    operator.gt: aten.gt.Tensor,
    operator.ge: aten.ge.Tensor,
    operator.eq: aten.eq.Tensor,
    operator.ne: aten.ne.Tensor,
    operator.and_: aten.bitwise_and.Tensor,
    operator.or_: aten.bitwise_or.Tensor,
    torch.sym_max: aten.maximum.default,
    torch.sym_min: aten.minimum.default,
    torch.sym_not: aten.logical_not.default,
}
"""Maps operators on numbers to the same operators on tensors."""

_FACTORS: dict[Any, str] = {
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor), "alpha"),
    **dict.fromkeys((aten.addcmul.default, aten.addcdiv.default), "value"),
}
"""Maps operators to the name of the factor by which they multiply their second argument."""

_TYPES = {
    **dict.fromkeys((int, torch.SymInt), torch.int64),
    **dict.fromkeys((float, torch.SymFloat), torch.float64),
    **dict.fromkeys((bool, torch.SymBool), torch.bool),
}
"""Maps types of numbers to the dtypes of the tensors that replace them."""

_OF_TENSORS = {"default": "Tensor", "Scalar": "Tensor", "Tensor_Scalar": "Tensor_Tensor", "Scalar_Tensor": "Tensor"}
"""Maps overloads that take a number to those that take a tensor instead."""

_WHILE_LOOP, _COND = torch.ops.higher_order.while_loop, torch.ops.higher_order.cond


def numbers_as_tensors(module: GraphModule) -> GraphModule:
    """A copy of a graph and of the graphs that it runs, in which data-dependent numbers are
    tensors.

    Raises:
        UnsupportedError: such a number is an output, whose reader expects a number.
    """
    copied, made = _rewritten(module, ())
    if seen := made.intersection(copied.graph.output_node().all_input_nodes):
        problems = [
            Problem(source_line(node) or node.name, "is returned, or saved for the backward, as a number") for node in seen
        ]
        raise UnsupportedError(
            "Code for this target returns tensors only, no numbers.",
            sorted(problems, key=str),
            hint="Return a tensor in place of it (torch.tensor(0) for 0), and compute with a tensor in place of its item().",
        )
    return copied


def _rewritten(module: GraphModule, taken: Collection[int]) -> tuple[GraphModule, set[Node]]:
    """The copy, and its nodes that are tensors instead of numbers.

    ``taken``: the inputs that are such numbers.
    """
    copied = copy_of(module)
    graph = copied.graph
    rewriting = _Rewriting(graph)
    for i, node in enumerate(graph.find_nodes(op="placeholder")):
        if i in taken:
            rewriting.becomes_tensor(node)
    for node in list(graph.nodes):
        rewriting.visit(node)
    if taken:
        rewriting.return_tensors()
    for name, region in regions(module).items():
        copied.register_module(name, _rewritten(region, rewriting.converted_operands.get(name, ()))[0])
    copied.recompile()
    return copied, rewriting.made


class _Rewriting:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.made: set[Node] = set()
        self.converted_operands: dict[str, set[int]] = {}

    def becomes_tensor(self, node: Node) -> None:
        """Record that a node, an input or a loop's result, is a tensor from now on."""
        with fake_mode_of(self._graph):
            node.meta = {**node.meta, "val": torch.empty((), dtype=torch.int64)}
        self.made.add(node)

    def visit(self, node: Node) -> None:
        if node.target is aten._local_scalar_dense.default and type(node.meta["val"]) in _TYPES:
            scalar = self._call(node, aten.view.default, node.args[0], [])
            self._replace(node, self._cast(node, scalar, _TYPES[type(node.meta["val"])]))
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            self._visit_control_flow(node)
        elif self.made.isdisjoint(node.all_input_nodes):
            return
        elif node.target in _OPERATORS:
            self._replace(node, self._call(node, _OPERATORS[node.target], *map(self._tensor(node), node.args)))
        elif node.kwargs.get(_FACTORS.get(node.target, "")) in self.made:
            self._multiply(node)
        elif node.target is aten.scalar_tensor.default:
            self._replace(node, self._cast(node, node.args[0], node.meta["val"].dtype), is_number=False)
        elif node.target is aten.select.int:
            self._select(node)
        elif isinstance(node.target, torch._ops.OpOverload):
            self._compute_with_tensors(node, node.target)

    def return_tensors(self) -> None:
        """Convert constants among the results: a loop's next value may be a constant."""
        output = self._graph.output_node()
        results = output.args[0]
        if isinstance(results, (tuple, list)):
            output.args = (tuple(self._tensor(output)(item) if type(item) is int else item for item in results),)

    def _visit_control_flow(self, node: Node) -> None:
        """Make loops carry tensors instead of numbers, and record which inputs of the graphs that a
        node runs are tensors.
        """
        carried: Sequence[Any] = node.args[2] if node.target is _WHILE_LOOP else ()  # type: ignore[assignment]
        if any(type(item) is int for item in carried):
            changed = tuple(self._tensor(node)(item) if type(item) is int else item for item in carried)
            node.args = (*node.args[:2], changed, *node.args[3:])
        arguments = pytree.tree_leaves(node.args[1:] if node.target is _COND else node.args)
        graphs = [item for item in arguments if isinstance(item, Node) and item.op == "get_attr"]
        operands = [item for item in arguments if item not in graphs and not isinstance(item, str)]
        indices = {i for i, item in enumerate(operands) if item in self.made}
        for graph in graphs if indices else ():
            self.converted_operands[str(graph.target)] = indices
        numbers = {i for i in indices if i < len(carried)}
        if numbers:
            node.meta = {**node.meta, "val": self._with_tensors(node.meta["val"], numbers)}
        for user in node.users:
            if user.target is operator.getitem and user.args[1] in numbers:
                self.becomes_tensor(user)

    def _with_tensors(self, values: Sequence[Any], numbers: Collection[int]) -> list[Any]:
        with fake_mode_of(self._graph):
            return [torch.empty((), dtype=torch.int64) if i in numbers else value for i, value in enumerate(values)]

    def _select(self, node: Node) -> None:
        """Select a row by a tensor index, which counts from the end if it is negative."""
        source, dim, index = node.args
        if index not in self.made:
            return
        size = source.meta["val"].shape[dim]  # type: ignore[union-attr]
        index = self._call(node, aten.remainder.Scalar, index, size)
        row = self._call(node, aten.index_select.default, source, dim, self._call(node, aten.view.default, index, [1]))
        self._replace(node, self._call(node, aten.squeeze.dim, row, dim), is_number=False)

    def _multiply(self, node: Node) -> None:
        """Write an operator with a factor as products and a sum, of half types in float32, as its kernel computes."""
        dtype = node.meta["val"].dtype
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        tensor = self._tensor(node)
        given = [*node.args, node.kwargs[_FACTORS[node.target]]]
        first, second, *third, factor = [self._cast(node, tensor(x), wide) for x in given]
        product = self._call(node, aten.mul.Tensor, second, factor)
        for other in third:
            operation = aten.div.Tensor if node.target is aten.addcdiv.default else aten.mul.Tensor
            product = self._call(node, operation, product, other)
        total = self._call(node, aten.sub.Tensor if node.target is aten.sub.Tensor else aten.add.Tensor, first, product)
        self._replace(node, self._cast(node, total, dtype), is_number=False)

    def _compute_with_tensors(self, node: Node, target: torch._ops.OpOverload) -> None:
        """Pass tensors of the result's type instead of numbers; if an operator does not support
        that, leave it unchanged.
        """
        declared = [str(argument.type).removeprefix("Optional[").removesuffix("]") for argument in target._schema.arguments]
        taking = [kind for kind, item in zip(declared, node.args, strict=False) if item in self.made]
        if not taking or set(taking) - {"Tensor", "number"}:
            return
        if "number" in taking:
            name = _OF_TENSORS.get(target._overloadname, "")
            if name not in target.overloadpacket.overloads():
                return
            target = getattr(target.overloadpacket, name)
            tensor = self._tensor(node)
            node.args = tuple(
                tensor(item) if kind == "number" and item is not None else item
                for kind, item in zip(declared, node.args, strict=False)
            )
        dtype = node.meta["val"].dtype
        if dtype is not torch.bool:  # a number widens no type
            for item in [item for item in dict.fromkeys(node.all_input_nodes) if item in self.made]:
                node.replace_input_with(item, self._cast(node, item, dtype))
        self._replace(node, self._call(node, target, *node.args, **node.kwargs), is_number=False)

    def _tensor(self, before: Node) -> Callable[[Any], Any]:
        """Return a function that converts constants to tensors, before this node."""

        def make(value: Any) -> Any:
            if isinstance(value, Node):
                return value
            made = self._call(before, aten.full.default, [], value, dtype=_TYPES[type(value)], device=torch.device("cpu"))
            self.made.add(made)
            return made

        return make

    def _call(self, before: Node, target: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Node:
        """Add a call before ``before``, with the source line of ``before``."""
        with self._graph.inserting_before(before), fake_results(self._graph):
            node = self._graph.call_function(target, args, kwargs)
            values = map_arg((args, kwargs), lambda item: item.meta["val"])
            node.meta = {**before.meta, "val": target(*values[0], **values[1])}
            node.meta.pop("unbacked_bindings", None)
        return node

    def _cast(self, before: Node, value: Any, dtype: torch.dtype) -> Node:
        return self._call(before, aten._to_copy.default, value, dtype=dtype)

    def _replace(self, node: Node, new: Node, *, is_number: bool = True) -> None:
        node.replace_all_uses_with(new)
        self._graph.erase_node(node)
        if is_number:
            self.made.add(new)

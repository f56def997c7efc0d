"""Converts ``torch.fx`` graphs to the format's graphs without loss; :mod:`.restore` converts them
back.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from aotpack_loader.devices import operators
from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import schema

from .. import origin
from .._torch.api.random_operators import is_fixed
from .._torch.api.torch_types import ShapeEnv
from .._torch.tracing.aot_autograd import CALL_ON_COPIES
from . import views
from .expressions import size_expression
from .literals import NOT_A_LITERAL, dtype_name, is_held, literal_argument
from .native_operators import in_bundles

_BUILTIN_NAMES: dict[Any, str] = {function: name for name, function in operators.BUILTINS.items()} | {torch.sym_sqrt: "sqrt"}


def from_fx(module: GraphModule, shape_env: ShapeEnv | None) -> schema.Graph:
    """Convert a functional graph whose nodes have ``meta["val"]``.

    Raises:
        UnsupportedError: operations or values that the format cannot express; lists all, with the
            user's source lines.
    """
    return _Converter(module, shape_env).convert()


class _Converter:
    def __init__(self, module: GraphModule, shape_env: ShapeEnv | None) -> None:
        self.module = module
        self.shape_env = shape_env
        self.problems: list[Problem] = []
        self.subgraphs: dict[str, schema.Graph] = {}
        self._names: dict[int, str] = {}

    def convert(self) -> schema.Graph:
        inputs: list[str] = []
        input_values: list[schema.Value] = []
        nodes: list[schema.Node] = []
        outputs: list[schema.Arg] = []
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                inputs.append(node.name)
                input_values.append(self.value(node))
            elif node.op == "call_function":
                nodes.append(self.node(node))
            elif node.op == "output":
                results = node.args[0] if isinstance(node.args[0], (tuple, list)) else [node.args[0]]
                outputs = [self.argument(arg, node) for arg in results]
            elif node.op != "get_attr":  # subgraphs are converted by their users
                self.problems.append(Problem(node.name, f"a {node.op} node"))
        if self.problems:
            raise UnsupportedError("The traced graph contains something that a bundle cannot express.", self.problems)
        return schema.Graph(inputs, input_values, nodes, outputs, self.subgraphs)

    def node(self, node: FxNode) -> schema.Node:
        if node.target is CALL_ON_COPIES:
            return self._call_on_copies(node, *node.args)
        target, given, named = in_bundles(node)
        if target is round and given[1:] == (None,):
            given = given[:1]  # rounds to an integer
        args = [self.argument(arg, node) for arg in given]
        kwargs = {key: self.argument(arg, node) for key, arg in named.items()}
        return schema.Node(node.name, self.operator(target, node), args, self.value(node), kwargs)

    def _call_on_copies(self, node: FxNode, op: Any) -> schema.Node:
        """Convert a call of a custom operator that writes to its arguments."""
        if message := _cannot_be_called_on_copies(node, op):
            self.problems.append(Problem(source_line(node) or node.name, f"calls {op}, which {message}"))
        kwargs = {key: self.argument(arg, node) for key, arg in node.kwargs.items()}
        return schema.Node(node.name, str(op), [], self.value(node), kwargs)

    def operator(self, target: Any, node: FxNode) -> str:
        if isinstance(target, torch._ops.OpOverload):
            if target.namespace == "aotpack":  # the number of a module of this process is among its arguments
                self.problems.append(Problem(source_line(node) or node.name, "calls a loaded bundle; build from its original"))
            return str(target)
        if isinstance(target, torch._ops.HigherOrderOperator):
            return f"higher_order.{target.name()}"
        name = _BUILTIN_NAMES.get(target)
        if name is None:
            self.problems.append(Problem(source_line(node) or node.name, f"calls {target}, which is not an operator"))
            return "builtin.unknown"
        return f"builtin.{name}"

    def value(self, node: FxNode) -> schema.Value:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            if not is_held(value.dtype):
                message = f"{node.target} makes a tensor of type {value.dtype}, which a bundle does not hold"
                self.problems.append(Problem(source_line(node) or node.name, message))
            return tensor_value(value, self.shape_env)
        if isinstance(value, torch.SymInt) or (isinstance(value, int) and not isinstance(value, bool)):
            return schema.IntValue(size_expression(value, self.shape_env))
        if isinstance(value, (tuple, list)):
            return schema.OtherValue("tuple")
        if isinstance(value, (float, torch.SymFloat)):
            return schema.OtherValue("float")
        return schema.OtherValue("bool" if isinstance(value, (bool, torch.SymBool)) else "none")

    def argument(self, arg: Any, node: FxNode) -> Any:
        if isinstance(arg, FxNode):
            return self._subgraph(arg, node) if arg.op == "get_attr" else schema.ValueRef(arg.name)
        if isinstance(arg, (list, tuple)):
            return [self.argument(item, node) for item in arg]
        if isinstance(arg, dict):  # options of a kernel
            return [[str(key), self.argument(value, node)] for key, value in arg.items()]
        literal = literal_argument(arg)
        if literal is NOT_A_LITERAL:
            self.problems.append(Problem(source_line(node) or node.name, _unknown_argument(arg, node)))
            return None
        return literal

    def _subgraph(self, arg: FxNode, user: FxNode) -> schema.GraphArg | None:
        attribute = operator.attrgetter(str(arg.target))(self.module)
        if not isinstance(attribute, GraphModule):
            self.problems.append(Problem(source_line(user) or user.name, f"uses {_opaque(attribute)}"))
            return None
        return schema.GraphArg(self._stored_once(attribute, str(arg.target)))

    def _stored_once(self, attribute: GraphModule, name: str) -> str:
        """The name under which a subgraph is stored; equal subgraphs, as of identical layers, share
        one name.
        """
        if id(attribute) not in self._names:
            try:
                converted = from_fx(attribute, self.shape_env)
            except UnsupportedError as error:
                self.problems += error.problems
                return name
            known = next((key for key, graph in self.subgraphs.items() if graph == converted), None)
            self._names[id(attribute)] = known or name.replace(".", "__")
            self.subgraphs.setdefault(self._names[id(attribute)], converted)
        return self._names[id(attribute)]


def _unknown_argument(arg: object, node: FxNode) -> str:
    if isinstance(arg, torch._ops.OpOverload) and arg._schema.is_mutable:
        return f"calls {arg}, which writes to an argument and returns it; a custom operator must not return what it writes to"
    if isinstance(arg, torch.dtype):
        return f"calls {node.target} for the element type {arg}, which a bundle does not hold"
    return f"passes a {type(arg).__name__} to {node.target}"


def _cannot_be_called_on_copies(node: FxNode, op: torch._ops.OpOverload) -> str:
    """Why a mutating operator cannot be called on copies of its arguments; empty if it can."""
    if is_fixed(op):
        return "writes to its arguments, and draws random numbers or has other effects"
    starts = {name: _starts(argument) for name, argument in node.kwargs.items()}
    used = [start for found in starts.values() for start in found]
    written = [start for argument in op._schema.arguments if argument.is_write for start in starts.get(argument.name, [])]
    return "writes to an argument that shares its memory with another" if any(used.count(start) > 1 for start in written) else ""


def _starts(argument: Any) -> list[FxNode]:
    """The root values of an argument or of its items: each item, or the value that it is a view of."""
    return [views.root(item) for item in pytree.tree_leaves(argument) if isinstance(item, FxNode)]


def _opaque(value: object) -> str:
    """Describe an object that a graph closes over and that is neither a tensor nor a graph."""
    name = getattr(value, "script_class_name", None) or type(value).__qualname__
    if name.endswith("Generator"):
        return "a torch.Generator object; a bundle draws from the default generator"
    return f"an object of type {name}, which a bundle cannot hold"


def tensor_value(value: torch.Tensor, shape_env: ShapeEnv | None) -> schema.TensorValue:
    """The type of a (fake) tensor: dtype, sizes, strides and offset in elements."""
    return schema.TensorValue(
        dtype_name(value.dtype),
        [size_expression(size, shape_env) for size in value.shape],
        [size_expression(stride, shape_env) for stride in value.stride()],
        size_expression(value.storage_offset(), shape_env),
    )


def source_line(node: FxNode) -> str:
    """``file:line: source`` of the model's innermost line behind a node, or else of torch's; empty
    if there is none.
    """
    return origin.line_of_trace(node.meta.get("stack_trace") or "")

"""Spares AOTInductor's trace of a graph that AOTAutograd has already traced.

AOTInductor traces every graph with AOTAutograd, to decompose operators and to remove writes. A graph
of a bundle has no writes, and it was traced with Inductor's decompositions. So most of its nodes
would come out as they are. They are copied here, and the other nodes are traced one by one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
import torch.utils._pytree as pytree
from torch._inductor import compile_fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate
from torch.fx.traceback import preserve_node_meta, set_current_meta

from ..api.counting import count_call
from ..api.fake_tensors import fake_mode_of
from ..api.graph_modules import lazy_graph_module
from ..api.patching import Replacing, hooked
from .rules import Rules, adapted


class _Signature(NamedTuple):
    """What AOTInductor reads of AOTAutograd's ``GraphSignature``: a graph without state and without writes."""

    user_inputs: list[str]
    inputs_to_parameters: Mapping[str, str] = {}
    inputs_to_buffers: Mapping[str, str] = {}
    buffers_to_mutate: Mapping[str, str] = {}
    user_inputs_to_mutate: Mapping[str, str] = {}
    output_tokens: tuple[str, ...] = ()


def without_second_trace(restrided_inputs: Collection[int], rules: Mapping[Any, Any] = MappingProxyType({})) -> Replacing:
    """While AOTInductor compiles, copy graphs that need no trace instead of tracing them.

    ``restrided_inputs`` have other strides than the graph was traced with. ``rules`` are further decompositions.
    """
    trace: Callable[..., tuple[GraphModule, Any]] = compile_fx.aot_export_module  # type: ignore[assignment,attr-defined]

    def export(module: GraphModule, inputs: Any, *, decompositions: Rules, **options: Any) -> tuple[GraphModule, Any]:
        count_call("inductor-second-trace")
        decompositions = {**adapted(decompositions), **rules}
        copy = copied(module, decompositions, restrided_inputs) if can_be_copied(module) else None
        if copy is None:
            _forget_sizes_of_slices(module.graph)
            return trace(module, inputs, decompositions=decompositions, **options)
        return copy, _Signature([node.name for node in copy.graph.find_nodes(op="placeholder")])

    return hooked("inductor-second-trace", compile_fx, "aot_export_module", export)


def _forget_sizes_of_slices(graph: Graph) -> None:
    """Let slices that depend on data have other sizes in a second trace, such as ``Min(5, u0)`` for ``u1``.

    More is known of ``u0`` then. Torch expects a symbol wherever the first trace made one.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor):
        node.meta.pop("unbacked_bindings", None)


class _NotPlainError(Exception):
    """An operator decomposes into writes, constants or the like, which only a trace of the whole graph handles."""


def can_be_copied(module: GraphModule) -> bool:
    """Whether a graph calls only operators without writes, on tensors of constant sizes."""
    return all(_is_plain(node) for node in module.graph.nodes)


def _is_plain(node: Node) -> bool:
    if node.op == "output":
        return True
    if node.op == "call_function":
        target = node.target
        if target is not operator.getitem and (not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable):
            return False
    elif node.op != "placeholder":
        return False
    value = node.meta.get("val")  # null for a call without a result, such as a check of values
    return value is not None and all(map(_is_constant_size, pytree.tree_leaves(value)))


def _is_constant_size(value: Any) -> bool:
    """Whether a value is a fake tensor of constant sizes, or None."""
    return value is None or (isinstance(value, FakeTensor) and all(type(x) is int for x in (*value.shape, *value.stride())))


def copied(module: GraphModule, decompositions: Rules, restrided_inputs: Collection[int] = ()) -> GraphModule | None:
    """Return the graph that a trace of ``module`` with ``decompositions`` would give.

    ``module`` is one that :func:`can_be_copied`; ``restrided_inputs`` as in :func:`without_second_trace`. None if an operator
    decomposes into what cannot be copied.
    """
    copy = _Copy(decompositions)
    for i, node in enumerate(module.graph.find_nodes(op="placeholder")):
        copy.add_input(f"arg{i}_1", node, restrided=i in restrided_inputs)
    with torch.no_grad(), fake_mode_of(module.graph), preserve_node_meta():
        try:
            for node in module.graph.nodes:
                if node.op == "call_function":
                    copy.add(node)
        except _NotPlainError:
            return None
    copy.graph.output(copy.of(module.graph.output_node().args[0]))
    copy.graph.eliminate_dead_code()
    return lazy_graph_module(torch.nn.Module(), copy.graph)


class _Copy:
    """A graph in the making, and what stands in it for each node of another graph.

    For an operator with several results that is a list. ``_restrided`` are nodes of this graph whose
    strides differ from those of the nodes they stand for.
    """

    def __init__(self, decompositions: Rules) -> None:
        self.graph = Graph()
        self._decompositions = decompositions
        self._known: dict[Node, Any] = {}
        self._restrided: set[Node] = set()

    def of(self, value: Any) -> Any:
        """What stands for an argument of the other graph, or for the nodes in it."""
        return map_aggregate(value, lambda x: self._known[x] if isinstance(x, Node) else x)

    def add_input(self, name: str, node: Node, *, restrided: bool) -> None:
        copy = self._known[node] = self.graph.placeholder(name)
        copy.meta["val"] = node.meta["val"]
        if restrided:
            self._restrided.add(copy)

    def add(self, node: Node) -> None:
        """Add a call, or what it decomposes into."""
        if node.target is operator.getitem:
            self._known[node] = self._part(node)
            return
        args, kwargs = self.of(node.args), self.of(node.kwargs)
        inputs = list(dict.fromkeys(x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Node)))
        operator_ = cast("torch._ops.OpOverload", node.target)
        values = map_aggregate((args, kwargs), lambda x: x.meta["val"] if isinstance(x, Node) else x)
        if not self._stays(operator_, *values):
            self._known[node] = self._decomposed(node, inputs, args, kwargs)
            return
        value = node.meta["val"]
        if not self._restrided.isdisjoint(inputs):
            value = operator_(*values[0], **values[1])
        made = self._known[node] = self._call(operator_, args, kwargs, value, {**node.meta, "original_aten": operator_})
        if value is not node.meta["val"]:
            for copy, old in zip(pytree.tree_leaves(made), pytree.tree_leaves(node.meta["val"]), strict=True):
                if old is not None and copy.meta["val"].stride() != old.stride():
                    self._restrided.add(copy)

    def _part(self, node: Node) -> Any:
        """What stands for one of several results."""
        source, index = cast("tuple[Node, int]", node.args)
        return self._known[source][index]

    def _stays(self, target: torch._ops.OpOverload, args: Any, kwargs: Any) -> bool:
        """Whether a trace calls the same operator."""
        if target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            return False
        rule = self._decompositions.get(target)
        return rule is None or rule(*args, **kwargs) is NotImplemented

    def _call(self, target: torch._ops.OpOverload, args: Any, kwargs: Any, value: Any, meta: Mapping[str, Any]) -> Any:
        """Add a call that returns ``value``, and a node for each of several results."""
        call = self._node(target, args, kwargs, target.overloadpacket.__name__, {**meta, "val": value})
        if not isinstance(value, (tuple, list)):
            return call
        return [self._node(operator.getitem, (call, i), {}, "getitem", {**meta, "val": part}) for i, part in enumerate(value)]

    def _node(self, target: Any, args: Any, kwargs: Any, name: str, meta: dict[str, Any]) -> Node:
        node = self.graph.create_node("call_function", target, args, kwargs, name=self.graph._target_to_str(name))
        node.meta.update(meta)
        return node

    def _decomposed(self, node: Node, inputs: list[Node], args: Any, kwargs: Any) -> Any:
        """Add what a trace of the node's operator gives; returns what stands for its results."""

        def call(*tensors: torch.Tensor) -> Any:
            given = dict(zip(inputs, tensors, strict=True))
            values = map_aggregate((args, kwargs), lambda x: given[x] if isinstance(x, Node) else x)
            return cast("Any", node.target)(*values[0], **values[1])

        with set_current_meta(node):
            trace = make_fx(call, decomposition_table=dict(self._decompositions))
            traced = trace(*[value.meta["val"].detach() for value in inputs])
        if not can_be_copied(traced):
            raise _NotPlainError
        self._known.update(zip(traced.graph.find_nodes(op="placeholder"), inputs, strict=True))
        for part in traced.graph.nodes:
            if part.op != "call_function":
                continue
            if part.target is operator.getitem:
                self._known[part] = self._part(part)
            else:
                self._known[part] = self._call(part.target, self.of(part.args), self.of(part.kwargs), part.meta["val"], part.meta)
        result = self.of(traced.graph.output_node().args[0])
        # whether views of it may differ is not known, so what follows is computed again
        self._restrided.update(x for x in pytree.tree_leaves(result) if isinstance(x, Node))
        return result

"""Splits graphs into parts for compilers without calls, so that a nested region that runs
repeatedly is compiled once.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from aotpack_loader.format import schema, subgraphs

from ..._torch.api import fake_tensors
from ...graph import from_fx
from ..base import GraphToCompile

_CALL = torch.ops.higher_order.invoke_subgraph


@dataclass(frozen=True)
class Parts:
    """A graph as a sequence of calls of ``modules``.

    A call takes values by number; its results get the next numbers.

    The graph's inputs have the first numbers; ``outputs`` are the numbers of its outputs.
    """

    modules: list[GraphModule]
    calls: list[tuple[int, list[int]]]
    outputs: list[int]


def method_of(key: str) -> str:
    """The method of a graph or of a part of one: ``train`` of ``train.forward`` and of ``train.forward.2``."""
    return re.split(r"\.(?:forward|backward)(?:\.|$)", key)[0]


def in_parts(graphs: Sequence[GraphToCompile]) -> tuple[list[GraphToCompile], dict[str, schema.Sequence]]:
    """Returns the graphs to compile instead of graphs that call regions, and by key how to run a
    graph in parts.

    If one half of a method is in parts, both halves keep the strides of the graphs for the values
    between them.
    """
    found: list[GraphToCompile] = []
    sequences: dict[str, schema.Sequence] = {}
    splits = {item.key: split(item.module) for item in graphs}
    for item in graphs:
        method = item.key.rpartition(".")[0]
        if any(parts is not None for key, parts in splits.items() if key.rpartition(".")[0] == method):
            item = replace(item, private=frozenset(), saved={})
        parts = splits[item.key]
        if parts is not None:
            named = _named(item, parts.modules)
            runs = Counter(named[number].key for number, _ in parts.calls)
            found += [replace(part, runs=runs[key]) for key, part in {part.key: part for part in named}.items()]
            calls = [schema.PartCall(named[number].key, inputs) for number, inputs in parts.calls]
            sequences[item.key] = schema.Sequence(calls, parts.outputs)
        elif any(node.op == "higher_order.invoke_subgraph" for node in subgraphs.all_nodes(item.graph)):
            found.append(replace(item, module=without_calls(item.module)))
        else:
            found.append(item)
    return found, sequences


def _named(item: GraphToCompile, modules: Sequence[GraphModule]) -> list[GraphToCompile]:
    """The parts of a graph, each as a graph to compile; equal parts have one key."""
    known: list[schema.Graph] = []
    named = []
    for module in modules:
        converted = from_fx(module, fake_tensors.fake_mode_of(module.graph).shape_env)
        if converted not in known:
            known.append(converted)
        key = f"{item.key}.{known.index(converted)}"
        named.append(GraphToCompile(key, converted, item.descriptor, module, item.training, sizes=item.sizes))
    return named


def split(module: GraphModule) -> Parts | None:
    """The parts of a graph, or None if it calls no region twice.

    The nodes between two calls form a part. Nodes keep their order, so random numbers are drawn in
    the same order.
    """
    shared = _shared(module)
    return _GraphSplitter(without_calls(module, shared)).parts() if shared else None


def without_calls(module: GraphModule, kept: Collection[str] = ()) -> GraphModule:
    """A copy of a graph with the called regions inlined, except those in ``kept``."""
    root, graph = torch.nn.Module(), Graph()
    graph.output(_copy(module, graph, root, {}, kept))
    for node in graph.find_nodes(op="get_attr"):
        if not node.users:
            graph.erase_node(node)
    return GraphModule(root, graph)


def _copy(module: GraphModule, graph: Graph, root: torch.nn.Module, copies: dict[Node, Any], kept: Collection[str] = ()) -> Any:
    """Copy nodes to the end of ``graph``, and return the copied outputs.

    ``copies`` may already map inputs.

    Nodes are renamed, so that equal graphs have equal names.
    """

    def copied(arg: Any) -> Any:
        return map_arg(arg, lambda node: copies[node])

    for node in module.graph.nodes:
        if node in copies:
            continue
        if node.op == "output":
            return copied(node.args[0])
        if node.op == "get_attr":
            copies[node] = graph.get_attr(_registered(root, str(node.target), getattr(module, node.target), kept))
        elif node.target is _CALL and node.args[0].target not in kept:
            region = getattr(module, node.args[0].target)
            values = dict(zip(region.graph.find_nodes(op="placeholder"), copied(node.args[2:]), strict=True))
            copies[node] = _copy(region, graph, root, values)
        elif node.target is operator.getitem and isinstance(copies[node.args[0]], (tuple, list)):
            copies[node] = copies[node.args[0]][node.args[1]]
        else:
            target = graph._graph_namespace.create_name("input", None) if node.op == "placeholder" else node.target
            copies[node] = graph.create_node(node.op, target, copied(node.args), copied(node.kwargs))
            copies[node].meta = dict(node.meta)
    raise AssertionError("a graph ends with its output")


def _registered(root: torch.nn.Module, name: str, value: GraphModule, kept: Collection[str]) -> str:
    """Register a subgraph in ``root``; a region in ``kept`` keeps its name."""
    if name in kept:
        if not hasattr(root, name):
            root.register_module(name, value)
        return name
    fresh = f"subgraph_{len(list(root.children()))}"
    root.register_module(fresh, without_calls(value))
    return fresh


def _shared(module: GraphModule) -> set[str]:
    """Regions called at least twice, each time with tensors of the sizes and strides that they were
    traced with.
    """
    callers: dict[str, list[Node]] = {}
    for call in module.graph.find_nodes(op="call_function", target=_CALL):
        callers.setdefault(call.args[0].target, []).append(call)
    return {
        name for name, calls in callers.items() if len(calls) > 1 and all(_fits(getattr(module, name), call) for call in calls)
    }


def _fits(region: GraphModule, call: Node) -> bool:
    inputs = region.graph.find_nodes(op="placeholder")
    return all(isinstance(arg, Node) and _kind(arg) == _kind(own) for arg, own in zip(call.args[2:], inputs, strict=True))


def _kind(node: Node) -> object:
    value = node.meta["val"]
    return (value.dtype, value.shape, value.stride()) if isinstance(value, torch.Tensor) else type(value)


def compute_late(graph: Graph) -> None:
    """Move what is larger than its operands to its only user, if a call is between them.

    The part before the call would otherwise keep it in memory, as the gradient of an output layer
    whose weight is also an embedding's: the embedding's part of the gradient comes last.
    """
    calls = list(accumulate(node.target is _CALL for node in graph.nodes))
    passed = dict(zip(graph.nodes, calls, strict=True))
    for node in reversed(list(graph.nodes)):
        user = next(iter(node.users), None)
        if user is None or len(node.users) > 1 or user.op == "output" or passed[user] == passed[node] or not _is_movable(node):
            continue
        if getattr(node.target, "is_view", False) or _bytes(node) > sum(map(_bytes, node.all_input_nodes)):
            user.prepend(node)
            passed[node] = passed[user]


def _is_movable(node: Node) -> bool:
    """Whether a node computes one tensor of a known size, and draws no random numbers."""
    if node.op != "call_function" or node.target in (_CALL, operator.getitem):
        return False
    operands = [*node.all_input_nodes, node]
    known = all(
        isinstance(each.meta.get("val"), torch.Tensor) and all(type(n) is int for n in each.meta["val"].shape)
        for each in operands
    )
    return known and torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())


def _bytes(node: Node) -> int:
    value: torch.Tensor = node.meta["val"]
    return value.numel() * value.itemsize


class _GraphSplitter:
    """A graph cut before and after each call."""

    def __init__(self, whole: GraphModule) -> None:
        self.whole = whole
        self.modules: list[GraphModule] = []
        self.calls: list[tuple[int, list[int]]] = []
        self.numbers: dict[Node, int] = {node: i for i, node in enumerate(whole.graph.find_nodes(op="placeholder"))}
        self.count = len(self.numbers)
        self.regions: dict[str, int] = {}

    def parts(self) -> Parts:
        compute_late(self.whole.graph)
        for group in self._groups():
            if group[0].target is _CALL:
                self._call(group[0])
            else:
                self._between(group)
        outputs: Any = self.whole.graph.output_node().args[0]
        return Parts(self.modules, self.calls, [self.numbers[node] for node in outputs])

    def _groups(self) -> list[list[Node]]:
        """Each call alone, and the nodes between calls; ``getitem`` is in the group of the tuple
        that it reads.
        """
        groups: list[list[Node]] = []
        group_of: dict[Node, list[Node]] = {}
        for node in self.whole.graph.nodes:
            if node.op != "call_function":
                continue
            if node.target is operator.getitem:
                group = group_of[node.args[0]]
            elif node.target is _CALL or not groups or groups[-1][0].target is _CALL:
                groups.append(group := [])
            else:
                group = groups[-1]
            group.append(node)
            group_of[node] = group
        return groups

    def _call(self, call: Node) -> None:
        name: Any = call.args[0].target  # type: ignore[union-attr]
        region: GraphModule = getattr(self.whole, name)
        results: Any = region.graph.output_node().args[0]
        computed = [i for i, result in enumerate(results) if isinstance(result, Node)]
        if name not in self.regions:
            self.regions[name] = len(self.modules)
            body = without_calls(region)
            output = body.graph.output_node()
            output.args = (tuple(output.args[0][i] for i in computed),)  # type: ignore[index]
            body.recompile()
            self.modules.append(body)
        self.calls.append((self.regions[name], [self.numbers[arg] for arg in call.args[2:]]))  # type: ignore[index]
        for item in call.users:
            self.numbers[item] = self.count + computed.index(item.args[1])  # type: ignore[arg-type]
        self.count += len(computed)

    def _between(self, group: Sequence[Node]) -> None:
        inside = set(group)
        inputs = [node for node in dict.fromkeys(arg for node in group for arg in node.all_input_nodes) if node in self.numbers]
        results = [node for node in group if any(user not in inside for user in node.users)]
        if not results:
            return
        root, graph = torch.nn.Module(), Graph()
        copies: dict[Node, Any] = {}
        for node in inputs:
            copies[node] = graph.placeholder(f"input_{len(copies)}")
            copies[node].meta = dict(node.meta)
        for node in group:
            for attribute in node.all_input_nodes:
                if attribute.op == "get_attr":
                    value = getattr(self.whole, str(attribute.target))
                    copies[attribute] = graph.get_attr(_registered(root, str(attribute.target), value, ()))
            args, kwargs = map_arg((node.args, node.kwargs), lambda arg: copies[arg])
            copies[node] = graph.create_node(node.op, node.target, args, kwargs)
            copies[node].meta = dict(node.meta)
        graph.output(tuple(copies[node] for node in results))
        self.calls.append((len(self.modules), [self.numbers[node] for node in inputs]))
        self.modules.append(GraphModule(root, graph))
        for node in results:
            self.numbers[node] = self.count
            self.count += 1

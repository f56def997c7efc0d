"""Converts a graph to what AOTInductor accepts: only tensors as inputs and outputs, each once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from aotpack_loader.errors import BuildError
from aotpack_loader.format import donations, schema

from ..._torch.api import fake_tensors
from ..._torch.api.graph_modules import lazy_graph_module
from ..._torch.inductor.codegen.events import origins_in
from ..._torch.inductor.layouts import with_stride_order
from ..._torch.inductor.lowering import GraphToLower
from ..._torch.tracing.randomness import call_generator_operators
from ..base import GraphToCompile

Layouts = Mapping[int, Sequence[int]]
"""Maps an output to its dimensions from outermost to innermost in memory; outputs with the graph's
strides are omitted.
"""

Source = schema.GivenInput | schema.SizeCarrier
"""Where an input of compiled code comes from."""


@dataclass(frozen=True)
class ConvertedGraph:
    """A graph as AOTInductor accepts it: only tensors as inputs and outputs, each once.

    Args:
        to_lower: the graph, and what the code may do with its inputs and outputs.
        inputs: where each input comes from.
        outputs: for each output of the graph, its position among the outputs of the code.
        numbers: the positions of outputs that are numbers of the graph.
        overwritten: the inputs that the code may overwrite.
        fingerprint: what the code depends on besides the graph.
    """

    to_lower: GraphToLower
    inputs: list[Source]
    outputs: list[int]
    numbers: list[int]
    overwritten: list[int]
    fingerprint: str


def convert_graph(item: GraphToCompile, layouts: Layouts, own: Collection[int]) -> ConvertedGraph:
    """Copy the graph; replace integer inputs by sizes of tensors; return each output once.

    ``layouts``: the order of dimensions in which the forward's code writes what it saves. ``own``:
    the inputs that the forward writes to memory of their own. Both refer to inputs by index.
    """
    graph = torch.fx.Graph()
    output = graph.graph_copy(item.module.graph, {})
    graph.output(output)
    module = lazy_graph_module(item.module, graph)
    if layouts:
        _views_of_any_layout(graph)
    examples, inputs = _bind_inputs(graph, layouts)
    written = _written_in_place(graph, item.method) if item.method is not None and item.method.step else []
    positions, numbers = _return_each_once(graph, item.key)
    call_generator_operators(graph)
    graph.lint()
    module.recompile()
    free = sorted({*positions} - {position for output, position in enumerate(positions) if output not in item.private})
    given = {i: source.index for i, source in enumerate(inputs) if isinstance(source, schema.GivenInput)}
    donatable = set() if item.method is None or not item.saved else donations.private(item.method) & set(own)
    consumed = [i for i, index in given.items() if index in item.saved]
    donated = [i for i in consumed if given[i] in donatable]
    restrided_inputs = [i for i, index in given.items() if layouts.get(index)]
    events = hashlib.sha256(json.dumps([item.key, *origins_in(item.module.graph)]).encode()).hexdigest()
    fingerprint = json.dumps([item.sizes, item.training, item.runs, free, consumed, donated, sorted(layouts.items()), events])
    to_lower = GraphToLower(
        module,
        examples,
        item.key,
        training=item.training,
        runs=item.runs,
        free=free,
        consumed=consumed,
        donated=donated,
        restrided_inputs=restrided_inputs,
    )
    return ConvertedGraph(to_lower, inputs, positions, numbers, [*donated, *written], fingerprint)


def _bind_inputs(graph: torch.fx.Graph, layouts: Layouts) -> tuple[list[Any], list[Source]]:
    """Give the graph only tensors as inputs: those with derived sizes last. Returns an example of each, and its source."""
    placeholders = graph.find_nodes(op="placeholder")
    bindings: list[tuple[Node, Source]] = []
    for index, node in enumerate(placeholders):
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            if order := layouts.get(index):
                node.meta["val"] = with_stride_order(value, order)
            bindings.append((node, schema.GivenInput(index)))
        elif not _read_off_a_tensor(graph, node, placeholders):
            bindings.append((_to_carrier(graph, node), schema.SizeCarrier(index)))
    bindings.sort(key=lambda pair: _has_derived_sizes(pair[0].meta["val"]))
    start = next(node for node in graph.nodes if node.op != "placeholder")
    for node, _ in bindings:
        start.prepend(node)
    return [node.meta["val"] for node, _ in bindings], [source for _, source in bindings]


def _written_in_place(graph: torch.fx.Graph, method: schema.Method) -> list[int]:
    """Let an update write to what it changes, and return that. Returns these inputs."""
    placeholders, output = graph.find_nodes(op="placeholder"), graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    with graph.inserting_before(output):
        for mutation in method.mutations:
            owner, value = placeholders[mutation.primal], results[mutation.output]
            copied = graph.call_function(torch.ops.aten.copy_.default, (owner, value))
            copied.meta["val"] = owner.meta["val"]
            results[mutation.output] = owner
    output.args = (tuple(results),)
    return [mutation.primal for mutation in method.mutations]


def _return_each_once(graph: torch.fx.Graph, key: str) -> tuple[list[int], list[int]]:
    """Return each output once, as a tensor. Returns the position of each, and the positions of numbers."""
    distinct: list[Node] = []
    positions: list[int] = []
    output = graph.output_node()
    for value in output.args[0]:  # type: ignore[union-attr]
        if not isinstance(value, Node) or isinstance(value.meta["val"], (bool, torch.SymBool)):
            raise BuildError(f"{key} returns a bool that depends on data; the cpu target cannot return it.")
        if value not in distinct:
            distinct.append(value)
        positions.append(distinct.index(value))
    numbers = [position for position, value in enumerate(distinct) if not isinstance(value.meta["val"], torch.Tensor)]
    for position in numbers:
        distinct[position] = _as_tensor(graph, distinct[position])
    output.args = (tuple(distinct),)
    return positions, numbers


def _views_of_any_layout(graph: torch.fx.Graph) -> None:
    """Replace ``view`` by ``reshape``: a saved value's layout may now differ, and a view that does
    not exist becomes a copy.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default


def _as_tensor(graph: torch.fx.Graph, node: Node) -> Node:
    """Convert a number to a 0-dimensional tensor: compiled code returns only tensors."""
    dtype = torch.float64 if isinstance(node.meta["val"], (float, torch.SymFloat)) else torch.int64
    with graph.inserting_before(graph.output_node()):
        tensor = graph.call_function(torch.ops.aten.scalar_tensor.default, (node,), {"dtype": dtype})
    with fake_tensors.fake_mode_of(graph):
        tensor.meta["val"] = torch.empty((), dtype=dtype)
    return tensor


def _read_off_a_tensor(graph: torch.fx.Graph, node: Node, placeholders: list[Node]) -> bool:
    """Replace an integer input by a size of a tensor input that equals it; returns whether there is
    one.
    """
    wanted = node.meta["val"]
    if not isinstance(wanted, torch.SymInt):
        return False
    for other in placeholders:
        tensor = other.meta["val"]
        if not isinstance(tensor, torch.Tensor):
            continue
        sizes: Any = tensor.shape
        for dim, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and size.node.expr == wanted.node.expr:
                _replace_by_size(graph, node, other, dim)
                return True
    return False


def _has_derived_sizes(tensor: torch.Tensor) -> bool:
    """Whether a size is computed from others, such as half of one; compiled code must read those
    others first.
    """
    sizes: Any = tensor.shape
    return any(isinstance(size, torch.SymInt) and not size.node.expr.is_Atom for size in sizes)


def _to_carrier(graph: torch.fx.Graph, node: Node) -> Node:
    """Replace an integer input by an empty tensor of shape ``(size, 0)``: AOTInductor takes no
    integers in a backward.
    """
    size = node.meta["val"]
    if fake_tensors.hint_of(size) < 0:
        raise BuildError(f"The backward needs {node.name}, an integer below 0; the cpu target cannot pass negative integers.")
    mode = fake_tensors.fake_mode_of(graph)
    with mode:
        carrier = torch.empty((size, 0), dtype=torch.float32, device="cpu")
    with graph.inserting_before(node):
        placeholder = graph.placeholder(f"{node.name}_carrier")
    placeholder.meta["val"] = carrier
    _replace_by_size(graph, node, placeholder, 0)
    return placeholder


def _replace_by_size(graph: torch.fx.Graph, node: Node, tensor: Node, dim: int) -> None:
    first = next(other for other in graph.nodes if other.op != "placeholder")
    with graph.inserting_before(first):
        read = graph.call_function(torch.ops.aten.sym_size.int, (tensor, dim))
    read.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(read)
    graph.erase_node(node)

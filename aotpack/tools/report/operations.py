"""The graphs of a method for a reader: each operation with its module, source line and type, each input with its name.

Reads of one result of several (``builtin.getitem``) are part of the operation that makes the results.
Nothing here imports torch, and nothing that a graph calls has to exist here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from aotpack_loader.errors import AotpackError
from aotpack_loader.format import expressions, schema, subclasses
from aotpack_loader.format.labels import labels_of
from aotpack_loader.format.origins import lines_of, modules_of

from .describe import primal_name, tensor_type
from .graphs import element_size

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle

Half = Literal["forward", "backward"]


@dataclass(frozen=True)
class Operation:
    """One node of a graph.

    ``inputs`` are names of operations or of inputs of the graph. ``size`` is in bytes at the sizes of
    the example; None: unknown. ``module`` is the path of its module, ``line`` is ``model.py:12``;
    both are empty where the bundle does not say.
    """

    name: str
    op: str
    type: str
    size: int | None
    inputs: tuple[str, ...]
    module: str
    line: str


@dataclass(frozen=True)
class Input:
    """An input of a graph. ``label`` is the user's name for it. ``source`` is the forward operation that saved it."""

    name: str
    kind: Literal["parameter", "buffer", "constant", "argument", "size", "saved", "tangent"]
    label: str
    type: str
    size: int | None
    source: str = ""


@dataclass(frozen=True)
class Output:
    """An output of a graph: what the caller or the backward does with the value ``source``."""

    kind: Literal["result", "mutation", "saved", "gradient"]
    label: str
    source: str


@dataclass(frozen=True)
class GraphView:
    """One graph of a method, by its key (``train.backward``). ``located``: the bundle says where nodes come from."""

    key: str
    inputs: list[Input]
    operations: list[Operation]
    outputs: list[Output]
    located: bool


def views(bundle: Bundle, name: str) -> dict[Half, GraphView]:
    """Return the graphs of the method ``name`` that this copy of the bundle has.

    Raises:
        CorruptBundleError: a graph or the record of origins is damaged.
    """
    method = bundle.program.methods[name]
    origins = bundle.origins()
    found: dict[Half, GraphView] = {}
    if not bundle.has(method.forward):
        return found
    forward = bundle.graph(method.forward)
    sizes = Sizes(method)
    found["forward"] = _view(
        f"{name}.forward",
        forward,
        _forward_inputs(bundle, method, forward, sizes),
        _forward_outputs(method, forward),
        sizes,
        origins,
    )
    if method.backward is None or not bundle.has(method.backward.graph):
        return found
    backward = bundle.graph(method.backward.graph)
    inputs = _backward_inputs(method, method.backward, forward, backward, sizes)
    outputs = _backward_outputs(method, method.backward, backward)
    found["backward"] = _view(f"{name}.backward", backward, inputs, outputs, sizes, origins)
    return found


class Sizes:
    """Types as text, with the author's names of sizes, and bytes at the sizes of the example."""

    def __init__(self, method: schema.Method) -> None:
        self._labels = labels_of(method)
        self._hints = {symbol.name: symbol.hint for symbol in method.symbols if symbol.hint is not None}
        self._types: dict[tuple[object, ...], str] = {}
        self._bytes: dict[tuple[object, ...], int | None] = {}

    def type(self, value: schema.Value | None) -> str:
        if isinstance(value, schema.TensorValue):
            key = value.dtype, *value.shape
            if key not in self._types:
                self._types[key] = self._labels.text(tensor_type(value.dtype, value.shape))
            return self._types[key]
        if isinstance(value, schema.IntValue):
            return f"int {self._labels.text(value.expr)}"
        return "" if value is None else value.kind

    def bytes(self, value: schema.Value | None) -> int | None:
        """The memory of a tensor; of one with repeated elements (stride 0), that of its own elements."""
        if not isinstance(value, schema.TensorValue):
            return 0
        key = value.dtype, *value.shape, *value.stride
        if key not in self._bytes:
            self._bytes[key] = self._counted(value)
        return self._bytes[key]

    def _counted(self, value: schema.TensorValue) -> int | None:
        try:
            shape, stride = ([expressions.evaluate(d, self._hints) for d in dims] for dims in (value.shape, value.stride))
        except (AotpackError, KeyError):  # a size without a hint
            return None
        if len(shape) != len(stride):  # of a hostile bundle: nothing but this reads the strides in a graph
            return None
        own = (size for size, step in zip(shape, stride, strict=True) if step != 0)
        return math.prod(own) * element_size(value.dtype)


def references(node: schema.Node) -> Iterator[str]:
    """Yield the names of the values that a node takes."""
    stack: list[object] = [*reversed(node.kwargs.values()), *reversed(node.args)]
    while stack:
        item = stack.pop()
        if isinstance(item, schema.ValueRef):
            yield item.name
        elif isinstance(item, list):
            stack += reversed(item)


def result_makers(graph: schema.Graph) -> dict[str, str]:
    """Map each value of a graph to the operation or input that it comes from, without ``builtin.getitem``."""
    makers = {name: name for name in graph.inputs}
    for node in graph.nodes:
        source = next(references(node), None) if node.op == "builtin.getitem" else None
        makers[node.name] = node.name if source is None else makers.get(source, node.name)
    return makers


def _view(
    key: str, graph: schema.Graph, inputs: list[Input], outputs: list[Output], sizes: Sizes, origins: schema.Origins | None
) -> GraphView:
    makers = result_makers(graph)
    count = len(graph.nodes)
    modules, lines = modules_of(origins, key, count), lines_of(origins, key, count)
    parts: dict[str, list[schema.Value]] = {}
    for node in graph.nodes:
        if makers[node.name] != node.name:
            parts.setdefault(makers[node.name], []).append(node.value)
    operations = []
    for node, module, line in zip(graph.nodes, modules, lines, strict=True):
        if makers[node.name] != node.name:
            continue
        values: Sequence[schema.Value] = parts.get(node.name, [node.value])
        known = [sizes.bytes(value) for value in values]
        total = None if None in known else sum(size for size in known if size is not None)
        taken = tuple(dict.fromkeys(makers.get(name, name) for name in references(node)))
        operations.append(Operation(node.name, node.op, ", ".join(map(sizes.type, values)), total, taken, module, line))
    return GraphView(key, inputs, operations, outputs, any(modules) or any(lines))


def _forward_inputs(bundle: Bundle, method: schema.Method, graph: schema.Graph, sizes: Sizes) -> list[Input]:
    entries = {entry.name: entry for entry in bundle.program.state}
    labelled: list[tuple[str, str]] = []
    for index, subclass in enumerate(subclasses.of_primals(method, entries)):
        kind, label = _primal_kind(method.primals[index]), primal_name(method, index)
        labelled += [(kind, label + part) for part in subclasses.part_names(subclass)]
    labelled += [("size", "") for _ in graph.inputs[len(labelled) :]]
    return [
        Input(name, kind, label or name, sizes.type(value), sizes.bytes(value))  # type: ignore[arg-type]
        for name, value, (kind, label) in zip(graph.inputs, graph.input_values, labelled, strict=False)
    ]


def _primal_kind(primal: schema.Primal) -> str:
    kinds = {schema.ParameterPrimal: "parameter", schema.BufferPrimal: "buffer", schema.ConstantPrimal: "constant"}
    return kinds.get(type(primal), "argument")


def _forward_outputs(method: schema.Method, graph: schema.Graph) -> list[Output]:
    names = output_names(method, graph)
    paths = result_labels(method)
    found = [
        Output("result", label, name)
        for label, result in zip(paths, method.results, strict=False)
        if isinstance(result, (schema.FreshResult, schema.NumberResult, schema.AliasResult)) and result.output is not None
        for name in names[result.output]
    ]
    found += [
        Output("mutation", primal_name(method, mutation.primal), name)
        for mutation in method.mutations
        for name in names[mutation.output]
    ]
    saved = [] if method.backward is None else method.backward.saved
    found += [Output("saved", "", name) for item in saved if isinstance(item, schema.SavedOutput) for name in names[item.output]]
    return found


def output_names(method: schema.Method, graph: schema.Graph) -> list[list[str]]:
    """The values that each forward output consists of."""
    makers = result_makers(graph)
    flat = [makers.get(output.name, output.name) if isinstance(output, schema.ValueRef) else "" for output in graph.outputs]
    found = [
        [name for name in flat[part.start : part.stop] if name]
        for part in subclasses.part_positions(subclasses.of_outputs(method))
    ]
    return [*found, []]


def result_labels(method: schema.Method) -> list[str]:
    """The name of each leaf of the results, as the user would write it: ``result['loss']``."""
    found: list[str] = []

    def walk(tree: schema.Tree, label: str) -> None:
        if isinstance(tree, schema.LeafNode):
            found.append(label)
        elif isinstance(tree, schema.DictNode):
            for key, item in zip(tree.keys, tree.items, strict=True):
                walk(item, f"{label}[{key!r}]")
        elif isinstance(tree, schema.RecordNode):
            for key, item in zip(tree.fields, tree.items, strict=True):
                walk(item, f"{label}.{key}")
        elif not isinstance(tree, schema.GivenNode):
            for position, item in enumerate(tree.items):
                walk(item, f"{label}[{position}]")

    walk(method.outputs, "result")
    for update in method.updates:
        walk(update.tree, "update")
    return found


def _backward_inputs(
    method: schema.Method,
    backward: schema.Backward,
    forward: schema.Graph,
    graph: schema.Graph,
    sizes: Sizes,
) -> list[Input]:
    names = output_names(method, forward)
    results = {
        result.output: label
        for label, result in zip(result_labels(method), method.results, strict=False)
        if isinstance(result, schema.FreshResult)
    }
    described: list[tuple[str, str, str]] = []
    for item in backward.saved:
        if isinstance(item, schema.SavedPrimal):
            described.append((_primal_kind(method.primals[item.primal]), primal_name(method, item.primal), ""))
        elif isinstance(item, schema.SavedOutput):
            source = next(iter(names[item.output]), "")
            described.append(("saved", source, source))
        else:
            described.append(("size", f"size {sizes.type(schema.IntValue(item.expr)).removeprefix('int ')}", ""))
    for tangent in backward.tangents:
        label = f"gradient of {results.get(tangent.output, f'output {tangent.output}')}"
        described += [("tangent", label + part, "") for part in subclasses.part_names(tangent.subclass)]
    described += [("buffer", primal_name(method, write.primal), "") for write in backward.state_writes]
    return [
        Input(name, kind, label, sizes.type(value), sizes.bytes(value), source)  # type: ignore[arg-type]
        for name, value, (kind, label, source) in zip(graph.inputs, graph.input_values, described, strict=False)
    ]


def _backward_outputs(method: schema.Method, backward: schema.Backward, graph: schema.Graph) -> list[Output]:
    makers = result_makers(graph)
    positions = subclasses.part_positions(subclasses.of_gradients(backward))
    gradients = [
        Output("gradient", primal_name(method, primal), makers.get(output.name, output.name))
        for primal, position in enumerate(backward.gradients)
        if position is not None and position < len(positions)
        for output in graph.outputs[positions[position].start : positions[position].stop]
        if isinstance(output, schema.ValueRef)
    ]
    return gradients + [
        Output("mutation", primal_name(method, write.primal), makers.get(output.name, output.name))
        for write in backward.state_writes
        if isinstance(output := graph.outputs[write.output], schema.ValueRef)
    ]

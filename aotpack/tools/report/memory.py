"""Computes where the memory of a training step goes, from the graphs alone: what is saved, and what lives when.

The figures hold for graphs that run one operator at a time, as the portable target runs them, at the
sizes of the example. Compiled code fuses operators, and needs less beside what is saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aotpack_loader.errors import CorruptBundleError
from aotpack_loader.format import schema, subclasses

from .describe import tensor_type
from .operations import GraphView, Half, Sizes, references, result_makers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aotpack_loader.archive.bundle import Bundle

VIEWS: Final = frozenset(
    f"aten.{name}"
    for name in (
        "view", "_unsafe_view", "_reshape_alias", "t", "transpose", "permute", "expand", "slice", "select",
        "unsqueeze", "squeeze", "as_strided", "detach", "alias", "split", "split_with_sizes", "chunk", "unbind",
        "diagonal", "unfold", "view_as_real", "view_as_complex", "real", "imag", "movedim", "narrow", "swapaxes",
        "mT", "numpy_T", "expand_as", "view_as",
    )
)  # fmt: skip
"""Operators whose result shares the memory of their first argument, without the overload."""


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that the forward saves. ``size`` is in bytes; 0 if its memory is counted at another one or at an argument."""

    name: str
    op: str
    type: str
    module: str
    line: str
    size: int
    donated: bool


@dataclass(frozen=True)
class Moment:
    """The bytes that live while one operation runs: saved for the backward, gradients of the state, and all others."""

    half: Half
    operation: int
    saved: int
    gradients: int
    others: int

    @property
    def total(self) -> int:
        return self.saved + self.gradients + self.others


@dataclass(frozen=True)
class StepMemory:
    """The memory of one step of a method, beside its state and arguments. ``complete``: all sizes are known."""

    saved: list[SavedTensor]
    kept: list[str]
    moments: list[Moment]
    complete: bool = True

    @property
    def peak(self) -> int:
        """The position of the moment with the most live bytes."""
        return max(range(len(self.moments)), key=lambda i: self.moments[i].total, default=-1)

    @property
    def saved_bytes(self) -> int:
        return sum(tensor.size for tensor in self.saved)


def step_memory(bundle: Bundle, name: str, views: Mapping[Half, GraphView]) -> StepMemory:
    """Compute the memory of a step of the method ``name``, whose graphs are ``views``."""
    method = bundle.program.methods[name]
    if "forward" not in views:
        return StepMemory([], [], [], complete=False)
    walk = _Walk(bundle.graph(method.forward), Sizes(method))
    if "backward" not in views or method.backward is None:
        return StepMemory([], [], walk.run("forward", set(), set()), walk.complete)
    donated = _saved_values(method, method.backward, walk.graph)
    roots = {walk.roots[name] for name in donated} - set(walk.graph.inputs)
    moments = walk.run("forward", roots, set())
    tensors = list(_saved(walk, views["forward"], donated))
    results = {walk.roots.get(output.source, "") for output in views["forward"].outputs if output.kind == "result"}
    held = sum(walk.sizes.get(root, 0) for root in results - roots - set(walk.graph.inputs))
    after = _Walk(bundle.graph(method.backward.graph), Sizes(method))
    inputs = [
        name
        for name, item in zip(after.graph.inputs, method.backward.saved, strict=False)
        if isinstance(item, schema.SavedOutput)
    ]
    after.sizes |= dict.fromkeys(after.graph.inputs, 0)
    after.sizes |= {name: tensor.size for name, tensor in zip(inputs, tensors, strict=False)}  # shared memory counts at the first
    computed = {after.roots[o.name] for o in after.graph.outputs if isinstance(o, schema.ValueRef)} - set(after.graph.inputs)
    moments += after.run("backward", set(inputs), computed, held)
    kinds = ("parameter", "buffer", "argument", "constant")
    kept = dict.fromkeys(given.label for given in views["backward"].inputs if given.kind in kinds)
    return StepMemory(tensors, list(kept), moments, walk.complete and after.complete)


def _saved_values(method: schema.Method, backward: schema.Backward, graph: schema.Graph) -> dict[str, bool]:
    """The values that the forward saves, in order, and whether the backward may overwrite each."""
    positions = subclasses.part_positions(subclasses.of_outputs(method))
    found: dict[str, bool] = {}
    for item in backward.saved:
        if isinstance(item, schema.SavedOutput):
            at = positions[item.output].start
            if at >= len(graph.outputs):
                raise CorruptBundleError(f"A forward graph has {len(graph.outputs)} outputs, and its method saves output {at}.")
            output = graph.outputs[at]
            if isinstance(output, schema.ValueRef):
                found[output.name] = item.donated
    return found


class _Walk:
    """Follows the values of one graph: which share memory, and when each is used last."""

    def __init__(self, graph: schema.Graph, sizes: Sizes) -> None:
        self.graph = graph
        self.complete = True
        self.roots = {name: name for name in graph.inputs}
        self.sizes = dict.fromkeys(graph.inputs, 0)
        for node in graph.nodes:
            first = next(references(node), None)
            shares = node.op.rpartition(".")[0] in VIEWS or self._is_part(node, first)
            self.roots[node.name] = self.roots[first] if shares and first is not None else node.name
            if self.roots[node.name] == node.name:
                size = sizes.bytes(node.value)
                self.complete &= size is not None
                self.sizes[node.name] = size or 0

    def _is_part(self, node: schema.Node, first: str | None) -> bool:
        """Whether a node reads one of several views (``split``) of its argument; other parts have memory of their own."""
        return node.op == "builtin.getitem" and first is not None and self.roots.get(first) != first

    def run(self, half: Half, saved: set[str], gradients: set[str], held: int = 0) -> list[Moment]:
        """Return a moment for each node but reads of parts.

        ``saved`` and ``gradients`` are roots of values. The first live to the end of a forward, and to
        their last use in a backward. ``held`` bytes live all the time.
        """
        last: dict[str, int] = {}
        for position, node in enumerate(self.graph.nodes):
            for name in references(node):
                last[self.roots[name]] = position
        end = len(self.graph.nodes)
        last |= {self.roots[o.name]: end for o in self.graph.outputs if isinstance(o, schema.ValueRef)}
        dying: dict[int, list[str]] = {}
        for root, position in last.items():
            dying.setdefault(position, []).append(root)
        live = {"saved": 0, "gradients": 0, "others": held}
        kind = dict.fromkeys(saved, "saved") | dict.fromkeys(gradients, "gradients")
        for name in self.graph.inputs:
            live[kind.get(name, "others")] += self.sizes[name] if name in last else 0
        moments: list[Moment] = []
        number = 0
        makers = result_makers(self.graph)
        for position, node in enumerate(self.graph.nodes):
            if self.roots[node.name] == node.name and node.name in self.sizes:
                live[kind.get(node.name, "others")] += self.sizes[node.name]
            if makers[node.name] == node.name:
                moments.append(Moment(half, number, live["saved"], live["gradients"], live["others"]))
                number += 1
            else:  # a part of the operation before it
                moments[-1] = Moment(half, moments[-1].operation, live["saved"], live["gradients"], live["others"])
            if self.roots[node.name] == node.name and node.name not in last:
                live[kind.get(node.name, "others")] -= self.sizes[node.name]
            for root in dying.get(position, ()):
                live[kind.get(root, "others")] -= self.sizes[root]
        return moments


def _saved(walk: _Walk, view: GraphView, saved: Mapping[str, bool]) -> list[SavedTensor]:
    """Describe the saved values. Memory that several share counts once, and that of an input of the graph not at all."""
    operations = {operation.name: operation for operation in view.operations}
    makers = result_makers(walk.graph)
    values = {node.name: node.value for node in walk.graph.nodes} | dict(
        zip(walk.graph.inputs, walk.graph.input_values, strict=True)
    )
    seen = set(walk.graph.inputs)
    found = []
    for name, donated in saved.items():
        root, operation = walk.roots[name], operations.get(makers[name])
        size = 0 if root in seen else walk.sizes.get(root, 0)
        seen.add(root)
        value = values[name]
        text = operation.type if operation is not None and makers[name] == name else ""
        if not text and isinstance(value, schema.TensorValue):
            text = tensor_type(value.dtype, value.shape)
        op, module, line = (operation.op, operation.module, operation.line) if operation else ("", "", "")
        found.append(SavedTensor(name, op, text, module, line, size, donated))
    return found

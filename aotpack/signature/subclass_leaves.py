"""Represents each tensor subclass as a single node while the signature is computed.

AOTAutograd traces a subclass as its plain inner tensors. But mutations, aliases, tangents and
gradients are recorded for the subclass itself. :func:`fold` replaces the inner tensors of each
subclass by one node, so that the signature describes what the caller sees. :func:`plain` returns
the inner tensors of such a node. Stored graphs contain no folded nodes.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import Graph, Node

from aotpack_loader.format import schema

from .. import partition
from .._torch.api import fake_tensors
from .._torch.api.torch_types import ShapeEnv
from .._torch.tracing import aot_autograd
from ..graph import views
from ..model import subclasses


def unflatten(*parts: object) -> None:
    """The target of a folded node.

    The node represents the subclass with the inner tensors ``parts``.
    """
    raise NotImplementedError("a folded node is never run")


def plain(node: Node) -> Sequence[Node]:
    """Return the inner tensors of a folded node, or the node itself."""
    return node.args if is_folded(node) else (node,)  # type: ignore[return-value]


def is_folded(node: Node) -> bool:
    """Whether a node represents a subclass."""
    return node.target is unflatten


def flat(nodes: Iterable[object]) -> list[object]:
    """Return the outputs of a graph with folded nodes replaced by their inner tensors."""
    return [part for node in nodes for part in (plain(node) if isinstance(node, Node) else (node,))]


@dataclass(frozen=True)
class Folded:
    """A partitioned method in which each subclass is one node.

    ``parts.tangents`` stay placeholders of the backward, and ``tangents`` are those that the
    caller sees. ``sizes`` are placeholders of the forward for dynamic sizes of subclasses.
    AOTAutograd passes them beside the inner tensors.
    """

    joint: aot_autograd.Joint
    parts: partition.Partitioned
    tangents: list[Node]
    sizes: list[Node] = field(default_factory=list)


def fold(joint: aot_autograd.Joint, parts: partition.Partitioned) -> Folded:
    """Replace the inner tensors of each subclass by one node.

    Without subclasses, nothing changes.
    """
    if joint.gradient_metas is None:
        return Folded(joint, parts, list(parts.tangents[: len(parts.tangents) - len(joint.state_writes)]))
    metadata = joint.metadata
    forward = _Folding(parts.forward.graph)
    primals = forward.fold(metadata.subclass_inp_meta, parts.primals)
    descriptors = [_owner(joint.primal_descriptors[start]) for start in _starts(metadata.subclass_inp_meta)]
    outputs = forward.fold(metadata.subclass_fw_graph_out_meta, parts.forward_outputs)
    chains = [parts.chains[start] for start in _starts(metadata.subclass_fw_graph_out_meta)]
    tangents: list[Node] = []
    gradients = parts.gradients
    if parts.backward is not None:
        backward = _Folding(parts.backward.graph)
        tangents = backward.fold(metadata.subclass_tangent_meta, parts.tangents)
        gradients = backward.fold(joint.gradient_metas, parts.gradients)
        parts.backward.graph.output_node().args = (tuple(gradients),)
    folded = dataclasses.replace(parts, primals=primals, forward_outputs=outputs, chains=chains, gradients=gradients)
    tensors = {part for primal in primals for part in plain(primal)}
    sizes = [node for node in parts.primals if node not in tensors]
    return Folded(dataclasses.replace(joint, primal_descriptors=descriptors), folded, tangents, sizes)


def keep_used_sizes(graph: Graph, sizes: Sequence[Node]) -> list[Node]:
    """Move the size inputs that the graph uses behind all other inputs, and remove the unused ones."""
    used = [size for size in sizes if size.users]
    for size in sizes:
        graph.find_nodes(op="placeholder")[-1].append(size)
        if size not in used:
            graph.erase_node(size)
    return used


def folded_like(node: Node, parts: Sequence[Node]) -> Node:
    """Return a node for the same subclass with other inner tensors.

    The last of them must come last in the graph.
    """
    with node.graph.inserting_after(parts[-1]):
        folded = node.graph.call_function(unflatten, tuple(parts))
    folded.meta.update(node.meta)
    return folded


def describe(node: Node, where: str, shape_env: ShapeEnv | None) -> schema.Subclass | None:
    """Describe the subclass of a node, with the graph's sizes and strides of the inner tensors.

    None for a plain value.

    Raises:
        UnsupportedError: the class needs more than plain data to be rebuilt.
    """
    if not is_folded(node):
        return None
    values = iter([part.meta["val"] for part in plain(node)])

    def inner(path: str, tensor: torch.Tensor) -> schema.InnerTensor:
        return subclasses.inner_tensor(next(values), shape_env)

    return subclasses.describe(node.meta["val"], where, shape_env, inner)


def view_steps(base: Node, alias: Node, shape_env: ShapeEnv | None) -> list[schema.ViewStep] | None:
    """Return the view operators that turn the subclass ``base`` into ``alias``, or None if there are none.

    The operators must be the same for all inner tensors. Applied to the subclass itself, they must
    give exactly ``alias``.
    """
    pairs = list(zip(plain(base), plain(alias), strict=False))
    found = [views.steps_between(a, b, shape_env) for a, b in pairs]
    if len(plain(base)) != len(plain(alias)) or not found or found[0] is None or any(steps != found[0] for steps in found):
        return None
    value = base.meta["val"]
    for step in views.nodes_between(*pairs[0]):
        value = _applied(step, value)
    return found[0] if _is_same(value, alias.meta["val"]) else None


def _applied(view: Node, value: Any) -> Any:
    """Return the result of ``view``'s operator on another value."""
    if view.target is operator.getitem:
        return value[view.args[1]]
    args, kwargs = pytree.tree_map_only(Node, lambda node: node.meta["val"], (view.args[1:], dict(view.kwargs)))
    target: Any = view.target
    with torch.no_grad():
        return target(value, *args, **kwargs)


def _is_same(value: Any, expected: torch.Tensor) -> bool:
    if type(value) is not type(expected) or value.shape != expected.shape or value.stride() != expected.stride():
        return False
    if not fake_tensors.is_wrapper_subclass(value):
        return bool(value.storage_offset() == expected.storage_offset())
    (names, metadata), (other_names, other_metadata) = value.__tensor_flatten__(), expected.__tensor_flatten__()  # type: ignore[attr-defined]
    parts = [(getattr(value, name), getattr(expected, name)) for name in names]
    return names == other_names and metadata == other_metadata and all(_is_same(a, b) for a, b in parts)


def _owner(descriptor: Any) -> Any:
    """Return the descriptor of the caller's input that a plain graph input belongs to."""
    while hasattr(descriptor, "base"):
        descriptor = descriptor.base
    return descriptor


class _Folding:
    """Inserts folded nodes into one graph. The same subclass always becomes the same node."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.inputs: list[Node] = graph.find_nodes(op="placeholder")
        self.known: dict[tuple[Node, ...], Node] = {}

    def fold(self, metas: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """Return ``values`` with one node for each subclass.

        AOTAutograd's sizes between them are left out.
        """
        folded: list[Any] = []
        for meta, start in zip(metas, _starts(metas), strict=True):
            if hasattr(meta, "attrs"):
                parts = tuple(values[position] for position in _positions(meta, start))
                folded.append(self._node(parts, meta.original_subclass))
            else:
                folded.append(values[start])
        return folded

    def _node(self, parts: tuple[Node, ...], value: torch.Tensor) -> Node:
        node = self.known.get(parts)
        if node is not None and _is_same(value, node.meta["val"]):
            return node
        with self.graph.inserting_after(self._last(parts)):
            node = self.graph.call_function(unflatten, parts)
        node.meta["val"] = value
        node.meta["stack_trace"] = next((trace for part in parts if (trace := part.meta.get("stack_trace"))), None)
        return self.known.setdefault(parts, node)

    def _last(self, parts: tuple[Node, ...]) -> Node:
        """Return the node after which all of ``parts`` are computed.

        Inputs stay unflatten at the front.
        """
        if all(part.op == "placeholder" for part in parts):
            return self.inputs[-1]
        return max(parts, key=list(self.graph.nodes).index)


def _starts(metas: Sequence[Any]) -> list[int]:
    """Return the index of each value's first plain value in AOTAutograd's list."""
    return list(itertools.accumulate((getattr(meta, "arg_count", 1) for meta in metas[:-1]), initial=0))[: len(metas)]


def _positions(meta: Any, start: int) -> list[int]:
    """Return the indices of a subclass's inner tensors in AOTAutograd's list of plain values, which also has sizes."""
    found: list[int] = []
    for inner in meta.attrs.values():
        found += _positions(inner, start) if hasattr(inner, "attrs") else [start]
        start += getattr(inner, "arg_count", 1)
    return found

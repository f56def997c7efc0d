"""Tensor subclasses around plain graphs: the caller's, and autograd's, values as nodes that stand for several of a graph's.

AOTAutograd traces a subclass as the plain tensors it is made of, while mutations, aliases, tangents and gradients are known
of the subclass itself. :func:`fold` puts one node in place of the plain values of each subclass, so that all of the signature is
worked out for what the caller sees; :func:`plain` takes such a node apart again. No folded node stays in a stored graph.
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

from .. import _torch as compat
from .. import partition
from ..graph import views
from ..model import subclasses


def together(*parts: object) -> None:
    """The target of a folded node: it stands for the subclass of which ``parts`` are the plain tensors."""
    raise NotImplementedError("a folded node is never run")


def plain(node: Node) -> Sequence[Node]:
    """The plain values behind a node: those of a folded one, else itself."""
    return node.args if is_folded(node) else (node,)  # type: ignore[return-value]


def is_folded(node: Node) -> bool:
    """Whether a node stands for a subclass."""
    return node.target is together


def flat(nodes: Iterable[object]) -> list[object]:
    """Outputs of a graph with folded ones taken apart."""
    return [part for node in nodes for part in (plain(node) if isinstance(node, Node) else (node,))]


@dataclass(frozen=True)
class Folded:
    """A partitioned method in which each subclass is one node.

    ``parts.tangents`` stay placeholders of the backward; ``tangents`` are the caller's. ``sizes`` are placeholders of the
    forward, for sizes of subclasses that vary: AOTAutograd passes them beside the parts.
    """

    joint: compat.Joint
    parts: partition.Partitioned
    tangents: list[Node]
    sizes: list[Node] = field(default_factory=list)


def fold(joint: compat.Joint, parts: partition.Partitioned) -> Folded:
    """Put one node in place of the parts of each subclass. Without subclasses all stays as it is."""
    if joint.gradient_metas is None:
        return Folded(joint, parts, list(parts.tangents))
    metadata = joint.metadata
    forward = _Folding(parts.forward.graph)
    primals = forward.fold(metadata.subclass_inp_meta, parts.primals)
    descriptors = [_owner(joint.primal_descriptors[start]) for start in _starts(metadata.subclass_inp_meta)]
    outputs = forward.fold(metadata.subclass_fw_graph_out_meta, parts.forward_outputs)
    chains = [parts.chains[start] for start in _starts(metadata.subclass_fw_graph_out_meta)]
    folded = dataclasses.replace(parts, primals=primals, forward_outputs=outputs, chains=chains)
    tangents: list[Node] = []
    if parts.backward is not None:
        backward = _Folding(parts.backward.graph)
        tangents = backward.fold(metadata.subclass_tangent_meta, parts.tangents)
        folded.gradients = backward.fold(joint.gradient_metas, parts.gradients)
        parts.backward.graph.output_node().args = (tuple(folded.gradients),)  # type: ignore[arg-type]
    tensors = {part for primal in primals for part in plain(primal)}
    sizes = [node for node in parts.primals if node not in tensors]
    return Folded(dataclasses.replace(joint, primal_descriptors=descriptors), folded, tangents, sizes)


def keep_used_sizes(graph: Graph, sizes: Sequence[Node]) -> list[Node]:
    """Put sizes that the graph uses after all other inputs, and take the others out."""
    used = [size for size in sizes if size.users]
    for size in sizes:
        graph.find_nodes(op="placeholder")[-1].append(size)
        if size not in used:
            graph.erase_node(size)
    return used


def folded_like(node: Node, parts: Sequence[Node]) -> Node:
    """A node for the same subclass made of other parts, the last of which is known last."""
    with node.graph.inserting_after(parts[-1]):
        folded = node.graph.call_function(together, tuple(parts))
    folded.meta.update(node.meta)
    return folded


def describe(node: Node, where: str, shape_env: compat.ShapeEnv | None) -> schema.Subclass | None:
    """What a node stands for, sizes and strides of the parts as the graph knows them; None: a plain value.

    Raises:
        UnsupportedError: a class that needs more than plain data to be put together.
    """
    if not is_folded(node):
        return None
    values = iter([part.meta["val"] for part in plain(node)])

    def inner(path: str, tensor: torch.Tensor) -> schema.InnerTensor:
        return subclasses.inner_tensor(next(values), shape_env)

    return subclasses.describe(node.meta["val"], where, shape_env, inner)


def view_steps(base: Node, alias: Node, shape_env: compat.ShapeEnv | None) -> list[schema.ViewStep] | None:
    """View operations that turn the subclass ``base`` into ``alias``, or None where none are known to.

    The operations on the parts must be the same for all, and the class, applied to the whole, must answer with just these.
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
    """The view operation of ``view`` on another value."""
    if view.target is operator.getitem:
        return value[view.args[1]]
    args, kwargs = pytree.tree_map_only(Node, lambda node: node.meta["val"], (view.args[1:], dict(view.kwargs)))
    target: Any = view.target
    with torch.no_grad():
        return target(value, *args, **kwargs)


def _is_same(value: Any, expected: torch.Tensor) -> bool:
    if type(value) is not type(expected) or value.shape != expected.shape or value.stride() != expected.stride():
        return False
    if not compat.is_wrapper_subclass(value):
        return bool(value.storage_offset() == expected.storage_offset())
    (names, metadata), (other_names, other_metadata) = value.__tensor_flatten__(), expected.__tensor_flatten__()  # type: ignore[attr-defined]
    parts = [(getattr(value, name), getattr(expected, name)) for name in names]
    return names == other_names and metadata == other_metadata and all(_is_same(a, b) for a, b in parts)


def _owner(descriptor: Any) -> Any:
    """The input that a plain graph input was taken from."""
    while hasattr(descriptor, "base"):
        descriptor = descriptor.base
    return descriptor


class _Folding:
    """Puts folded nodes into one graph; values that are the same subclass become the same node."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.inputs: list[Node] = graph.find_nodes(op="placeholder")
        self.known: dict[tuple[Node, ...], Node] = {}

    def fold(self, metas: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """``values`` with those of one subclass as one node; AOTAutograd's sizes between them are left out."""
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
            node = self.graph.call_function(together, parts)
        node.meta["val"] = value
        node.meta["stack_trace"] = next((trace for part in parts if (trace := part.meta.get("stack_trace"))), None)
        return self.known.setdefault(parts, node)

    def _last(self, parts: tuple[Node, ...]) -> Node:
        """The node after which all of ``parts`` are known. Inputs stay together at the front."""
        if all(part.op == "placeholder" for part in parts):
            return self.inputs[-1]
        return max(parts, key=list(self.graph.nodes).index)


def _starts(metas: Sequence[Any]) -> list[int]:
    """Where each value begins among AOTAutograd's plain values."""
    return list(itertools.accumulate((getattr(meta, "arg_count", 1) for meta in metas[:-1]), initial=0))[: len(metas)]


def _positions(meta: Any, start: int) -> list[int]:
    """Where the parts of a subclass stand among AOTAutograd's plain values, of which some are sizes."""
    found: list[int] = []
    for inner in meta.attrs.values():
        found += _positions(inner, start) if hasattr(inner, "attrs") else [start]
        start += getattr(inner, "arg_count", 1)
    return found

"""Returns sparse gradients in parts, because a bundle's graphs contain strided tensors only.

``nn.Embedding(sparse=True)``, ``nn.EmbeddingBag(sparse=True)`` and ``torch.gather(sparse_grad=True)``
have sparse gradients. The backward graph returns the values and the indices of such a gradient. The
loader makes the sparse tensor of them, uncoalesced as in eager.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from .._torch.tracing import aot_autograd

_aten = torch.ops.aten
_MEAN = 1
"""The ``mode`` of ``nn.EmbeddingBag`` that divides by the size of a bag."""


@dataclass(frozen=True)
class _Parts:
    """A sparse tensor: ``indices`` (int64, sparse dimensions by entries) and ``values`` (entries by dense dimensions)."""

    indices: Node
    values: Node


class _Bags(NamedTuple):
    """The arguments of ``aten._embedding_bag_backward``."""

    gradient: Node
    indices: Node
    offsets: Node
    bag_of_entry: Node
    sizes: Node
    maxima: Node
    rows: Any
    scaled: bool
    mode: int
    sparse: bool
    weights: Node | None = None
    padding: int = -1


def with_parts_of_gradients(joint: aot_autograd.Joint) -> aot_autograd.Joint:
    """Return the joint graph with sparse gradients in parts. :attr:`Joint.sparse_gradients` lists them.

    The graph returns the values where it returned the gradient. The indices follow the gradients.
    Sums of a sparse and a dense gradient are dense, as in eager. Other uses of sparse tensors stay
    in the graph, and are refused later.
    """
    graph = joint.graph_module.graph
    for node in graph.find_nodes(op="call_function", target=_aten.embedding.default):
        node.args = node.args[:4]  # whether the gradient is sparse: it says nothing to a graph without autograd
    if joint.gradient_metas is not None or not joint.needs_autograd:
        return joint
    split = _GradientSplitter(graph, joint.fake_mode)
    split.replace_sums()
    output = graph.output_node()
    outputs, descriptors = list(output.args[0]), list(output.meta["desc"])  # type: ignore[arg-type]
    first, end = joint.outputs.gradient_values.start, joint.outputs.gradient_values.stop
    found: list[int] = []
    for i, gradient in enumerate(outputs[first:end]):
        parts = split.parts_of(gradient) if isinstance(gradient, Node) else None
        if parts is not None:
            outputs[first + i] = parts.values
            outputs.insert(end + len(found), parts.indices)
            descriptors.insert(end + len(found), descriptors[first + i])
            found.append(i)
    if not found and not split.changed:
        return joint
    output.args = (tuple(outputs),)
    output.meta["desc"] = descriptors
    split.erase_unused()
    joint.graph_module.recompile()
    return dataclasses.replace(joint, sparse_gradients=tuple(found))


class _GradientSplitter:
    """Splits the sparse tensors of a graph into indices and values."""

    def __init__(self, graph: Graph, fake_mode: Any) -> None:
        self.changed = False
        self._graph, self._fake_mode = graph, fake_mode
        self._known: dict[Node, _Parts | None] = {}
        self._sparse = [node for node in graph.nodes if _is_sparse(node)]

    def parts_of(self, node: Node) -> _Parts | None:
        """Return the parts of a sparse tensor. None if they are not known."""
        if node not in self._known:
            self._known[node] = self._split(node) if _is_sparse(node) else None
        return self._known[node]

    def replace_sums(self) -> None:
        """Replace each sum of a dense and a sparse tensor by one that writes into a dense copy."""
        for node in self._graph.find_nodes(op="call_function", target=_aten.add.Tensor):
            dense, sparse = node.args[0], node.args[1]
            if _is_sparse(dense):
                dense, sparse = sparse, dense
            parts = self.parts_of(sparse) if _is_sparse(sparse) and not _is_sparse(node) else None
            if parts is None or not isinstance(dense, Node) or node.kwargs:
                continue
            call = self._calls_before(node)
            rows = [call(_aten.select.int, parts.indices, 0, dim) for dim in range(_size(parts.indices, 0))]
            total = call(_aten.index_put.default, dense, rows, parts.values, True)
            node.replace_all_uses_with(total)
            self._sparse.append(node)
            self.changed = True

    def erase_unused(self) -> None:
        """Remove sparse tensors that nothing uses any more."""
        for node in sorted(self._sparse, reverse=True):
            if not node.users:
                self._graph.erase_node(node)

    def _split(self, node: Node) -> _Parts | None:
        call = self._calls_before(node)
        if node.target is _aten._sparse_coo_tensor_with_dims_and_tensors.default:
            indices, values = node.args[3], node.args[4]
            return _Parts(indices, values)  # type: ignore[arg-type]
        if node.target is _aten.add.Tensor and not node.kwargs:
            terms = [self.parts_of(term) if isinstance(term, Node) else None for term in node.args]
            if any(term is None for term in terms):
                return None
            indices = call(_aten.cat.default, [term.indices for term in terms if term is not None], 1)
            return _Parts(indices, call(_aten.cat.default, [term.values for term in terms if term is not None], 0))
        if node.target is _aten._embedding_bag_backward.default:
            return self._split_bags(node)
        return None

    def _split_bags(self, node: Node) -> _Parts | None:
        """Split the gradient of ``nn.EmbeddingBag``: each entry has the gradient of its bag.

        The operator does not always give the bag of each entry, so it is searched in the offsets.
        """
        bags = _Bags(*node.args)  # type: ignore[arg-type]
        if bags.padding >= 0:
            return None
        call, offsets = self._calls_before(node), _value(bags.offsets)
        count = call(_aten.sym_size.int, bags.indices, 0)
        entries = call(_aten.arange.default, count, dtype=offsets.dtype, device=offsets.device)
        bag = call(_aten.sub.Tensor, call(_aten.searchsorted.Tensor, bags.offsets, entries, right=True), 1)
        values = call(_aten.index_select.default, bags.gradient, 0, bag)
        if bags.mode == _MEAN:
            sizes = call(_aten.index_select.default, bags.sizes, 0, bag)
            values = call(_aten.div.Tensor, values, call(_aten.unsqueeze.default, sizes, 1))
        if bags.weights is not None:
            values = call(_aten.mul.Tensor, values, call(_aten.unsqueeze.default, bags.weights, 1))
        long = call(_aten._to_copy.default, bags.indices, dtype=torch.int64)
        return _Parts(call(_aten.unsqueeze.default, long, 0), values)

    def _calls_before(self, node: Node) -> Callable[..., Node]:
        """Return a function that adds calls of operators before ``node``, with its source line."""

        def call(operator: Any, *args: Any, **kwargs: Any) -> Node:
            with self._graph.inserting_before(node):
                made = self._graph.call_function(operator, args, kwargs)
            values = torch.fx.map_arg(args, _value)
            with self._fake_mode:
                made.meta = {**node.meta, "val": operator(*values, **kwargs)}
            return made

        return call


def _value(node: Node) -> Any:
    return node.meta["val"]


def _size(node: Node, dim: int) -> int:
    return int(_value(node).shape[dim])


def _is_sparse(node: object) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.layout == torch.sparse_coo

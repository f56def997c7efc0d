"""Replaces sums of gradients of parts by the parts, stacked.

The gradient of ``x[i]`` is a tensor of zeros with one part filled. If a model uses ``x[0]``,
``x[1]`` and ``x[2]``, as attention does with query, key and value, autograd adds three such
tensors. Compiled code would compute for each element which parts it belongs to. Here the sum is the
stack of the parts, which is copied by rows. If the sum is only copied to another layout, the stack has that layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .._torch.api import fake_tensors
from .rewriting import alike, call, is_zeros, texts

_ATEN = torch.ops.aten
_VIEWS = {_ATEN.permute.default, _ATEN.squeeze.dim, _ATEN.squeeze.dims, _ATEN.transpose.int, _ATEN.unsqueeze.default}


@dataclass(frozen=True)
class _Part:
    """Zeros of a shape, but for ``value`` at an index of a dimension."""

    value: Node
    dim: int
    index: int


def stack_parts(module: GraphModule) -> None:
    """Replace each sum of parts, one for every index of a dimension, by their stack."""
    graph = module.graph
    changed = False
    with fake_tensors.fake_mode_of(graph):
        for node in reversed(list(graph.nodes)):
            stacked = _stacked(node)
            if stacked is not None:
                changed |= _stack_as_copied(stacked, node)
                continue
            parts = _parts(node) if _is_outermost_sum(node) else None
            if parts is not None and _cover(parts, node):
                parts.sort(key=lambda part: part.index)
                changed |= _stack_as_copied(parts, node) or _stack(parts, [], parts[0].dim, node)
    if changed:
        graph.eliminate_dead_code()  # also stacks that did not fit
        module.recompile()


def _is_outermost_sum(node: Node) -> bool:
    return _is_plain_sum(node) and not any(_is_plain_sum(user) for user in node.users)


def _stacked(node: Node) -> list[_Part] | None:
    """The parts of a stack, as autograd makes it for the gradient of ``unbind``; null for other nodes.

    A decomposed stack along the first dimension is a view of a concatenation.
    """
    args: Any = node.args
    if node.target is _ATEN.stack.default:
        values, dim = (*args, 0)[:2]
    elif node.target is _ATEN.view.default and args[0].target is _ATEN.cat.default:
        values, dim = (*args[0].args, 0)[:2]
        if dim != 0 or any(texts((len(values), *value.meta["val"].shape)) != texts(node.meta["val"].shape) for value in values):
            return None
    else:
        return None
    return [_Part(value, dim % node.meta["val"].dim(), index) for index, value in enumerate(values)]


def _stack_as_copied(parts: Sequence[_Part], total: Node) -> bool:
    """If only a copy reads ``total``, possibly through views, replace the copy by a stack in its layout."""
    views: list[Node] = []
    source = total
    while len(source.users) == 1 and (reader := next(iter(source.users))).target in _VIEWS:
        views.append(reader)
        source = reader
    if len(source.users) != 1 or reader.target != _ATEN.clone.default:
        return False
    own = texts((len(parts), total.meta["val"].stride(parts[0].dim)))
    value = source.meta["val"]
    dims = [dim for dim, found in enumerate(zip(value.shape, value.stride(), strict=True)) if texts(found) == own]
    return len(dims) == 1 and _stack(parts, views, dims[0], reader)


def _stack(parts: Sequence[_Part], views: Sequence[Node], dim: int, replaced: Node) -> bool:
    """Replace a node by the stack of the parts along ``dim`` of what ``views`` make of each, if that has its strides."""
    graph, expected = replaced.graph, replaced.meta["val"]
    with graph.inserting_before(replaced):
        pieces = [call(graph, replaced, _ATEN.unsqueeze.default, part.value, part.dim) for part in parts]
        for view in views:
            pieces = [call(graph, view, view.target, piece, *view.args[1:]) for piece in pieces]
        if any(piece.meta["val"].dim() != expected.dim() for piece in pieces):  # a view removed the dimension of one part
            return False
        stacked = call(graph, replaced, _ATEN.cat.default, pieces, dim)
    fits = alike(stacked.meta["val"], expected)
    if fits:
        replaced.replace_all_uses_with(stacked)
    return fits


def _is_plain_sum(node: Node) -> bool:
    return node.target is _ATEN.add.Tensor and not node.kwargs and all(isinstance(arg, Node) for arg in node.args)


def _parts(node: Node) -> list[_Part] | None:
    """The parts that a sum adds; null if it adds anything else."""
    found: list[_Part] = []
    for term in node.args:
        assert isinstance(term, Node)
        inner = _is_plain_sum(term) and len(term.users) == 1
        part = _part(term)
        more = _parts(term) if inner else None if part is None else [part]
        if more is None:
            return None
        found += more
    return found


def _part(node: Node) -> _Part | None:
    if node.target == _ATEN.select_backward.default:
        value, _, dim, index = node.args
    elif node.target == _ATEN.select_scatter.default and is_zeros(node.args[0]):
        _, value, dim, index = node.args
    else:
        return None
    if not (isinstance(value, Node) and isinstance(dim, int) and isinstance(index, int)):
        return None
    shape = node.meta["val"].shape
    size = shape[dim]
    dim = dim % len(shape)
    return _Part(value, dim, index + size if index < 0 else index) if isinstance(size, int) else None


def _cover(parts: list[_Part], node: Node) -> bool:
    """Whether the parts have every index of one dimension, once."""
    dims = {part.dim for part in parts}
    return len(dims) == 1 and sorted(part.index for part in parts) == list(range(node.meta["val"].shape[min(dims)]))

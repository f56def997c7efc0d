"""Reads nodes of Dynamo's graph: their values, and the rows of tensors that they take or write."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch.fx import Node

JOINS: Final = (torch.stack, torch.cat, torch.concat, torch.concatenate)
_SPLITS: Final = (torch.split, torch.chunk, "split", "chunk")


class Row(NamedTuple):
    """``source.select(dim, position)``; with ``keeps``, of which the dimension is kept."""

    source: Node
    dim: int
    position: int
    keeps: bool


def key_of(node: Node) -> Hashable:
    """What a node has in common with the same node of another iteration. A node that is not of the user's code is alone."""
    if "stack_trace" not in node.meta:
        return node
    types = tuple((str(value.shape), value.dtype) for value in _tensors(value_of(node)))
    row, written = row_of(node), written_row(node)
    if row is not None or written is not None:
        return (written is None, (row or written).dim, (row or written).keeps, types)  # type: ignore[union-attr]
    return (node.op, node.target, frozen(node.args), frozen(node.kwargs), types)


def frozen(value: Any) -> Hashable:
    """Arguments of a node in a form that can be compared; all nodes are equal."""
    match value:
        case Node():
            return Node
        case tuple() | list():
            return (type(value), *map(frozen, value))
        case dict():
            return tuple((key, frozen(item)) for key, item in value.items())
        case slice():
            return (slice, frozen(value.start), frozen(value.stop), frozen(value.step))
    return (type(value), repr(value))


def value_of(node: Node) -> Any:
    """The fake value that Dynamo computed for a node."""
    return node.meta.get("example_value")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def row_of(node: Node) -> Row | None:
    """``node`` as a row of a tensor: ``x[:, t]``, ``x[:, t : t + 1]``, ``x.select(1, t)``, an element of ``x.unbind(1)``, or one
    of ``x.split(1, 1)``.
    """
    if node.target in (torch.select, "select") and not node.kwargs and len(node.args) == 3:
        return _checked_row(node.args[0], node.args[1], node.args[2], keeps=False)
    if node.target is not operator.getitem:
        return None
    source, index = node.args
    if not isinstance(source, Node):
        return None
    if isinstance(index, int) and is_divided(source):
        keeps = source.target in _SPLITS
        tensor, *numbers = source.args
        row = _checked_row(tensor, source.kwargs.get("dim", (*numbers[keeps:], 0)[0]), index, keeps=keeps)
        in_rows = row is not None and (not keeps or all(part.shape[row.dim] == 1 for part in value_of(source)))
        return row if in_rows else None
    return _indexed(source, index)


def is_divided(node: Node) -> bool:
    """Whether a node is a tuple of all parts of a tensor along a dimension."""
    return node.target in (*_SPLITS, torch.unbind, "unbind") and isinstance(value_of(node), (tuple, list))


def written_row(node: Node) -> Row | None:
    """The row to which ``x[:, t] = value`` writes a value of its shape."""
    if node.target is not operator.setitem or not all(isinstance(node.args[i], Node) for i in (0, 2)):
        return None
    target, index, value = node.args
    row = _indexed(target, index)  # type: ignore[arg-type]
    written = value_of(value)  # type: ignore[arg-type]
    if row is None or not isinstance(written, torch.Tensor) or written.dtype != value_of(row.source).dtype:
        return None
    shape = [*map(str, value_of(row.source).shape)]
    shape[row.dim : row.dim + 1] = ["1"] if row.keeps else []
    return row if [*map(str, written.shape)] == shape else None


def _indexed(source: Node, index: Any) -> Row | None:
    value = value_of(source)
    if not isinstance(value, torch.Tensor):
        return None
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in parts:
        where = parts.index(Ellipsis)
        parts[where : where + 1] = [slice(None)] * (value.dim() - len(parts) + 1)
    chosen = [dim for dim, part in enumerate(parts) if part != slice(None)]
    if len(chosen) != 1:
        return None
    part = parts[chosen[0]]
    if isinstance(part, slice) and type(part.start) is int and type(part.stop) is int and part.step is None:
        return _checked_row(source, chosen[0], part.start, keeps=True) if part.stop == part.start + 1 else None
    return _checked_row(source, chosen[0], part, keeps=False)


def _checked_row(source: Any, dim: Any, index: Any, *, keeps: bool) -> Row | None:
    value = value_of(source) if isinstance(source, Node) else None
    if not isinstance(value, torch.Tensor) or type(dim) is not int or type(index) is not int:
        return None
    dim %= max(value.dim(), 1)
    size = value.shape[dim] if dim < value.dim() else None
    if not isinstance(size, int) or not -size <= index < size:
        return None
    return Row(source, dim, index % size, keeps)


def memory(node: Node) -> object:
    """What identifies the memory of a node's tensor; of another value, the node."""
    value = value_of(node)
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else node

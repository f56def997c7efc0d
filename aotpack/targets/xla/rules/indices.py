"""Rules of operators that read and write elements by tensors of indices.

Eager raises for an index out of range. Here it reads the nearest element, and writes nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from torch.fx import Node

from .table import Array, NoRuleError, array, cast, highest, is_integer, lowest, rule, shape_of

Indices = Sequence[Array | None]


@rule("index_select")
def _index_select(node: Node, x: Array, dim: int, index: Array) -> Array:
    return jnp.take(x, index.reshape(-1), dim % x.ndim, mode="clip") if x.ndim else x


@rule("embedding")
def _embedding(node: Node, weight: Array, index: Array, *_: Any) -> Array:
    return jnp.take(weight, index, 0, mode="clip")


def _vectors(x: Array) -> Array:
    """A scalar as a vector of one element."""
    return x.reshape(1) if not x.ndim else x


def _along(dim: int, index: Array) -> tuple[Array, ...]:
    """For each dimension the index of each element: ``index`` along ``dim``, its own place along the others."""
    places = [lax.broadcasted_iota(jnp.int64, index.shape, i) for i in range(index.ndim)]
    places[dim] = index
    return tuple(places)


@rule("gather")
def _gather(node: Node, x: Array, dim: int, index: Array, **_: Any) -> Array:
    index = _vectors(index)
    return _vectors(x).at[_along(dim, index)].get(mode="clip").reshape(shape_of(node))


@rule("scatter.src scatter.value")
def _scatter(node: Node, x: Array, dim: int, index: Array, source: Any) -> Array:
    return _scattered("set", x, dim, index, source)


@rule("scatter_add")
def _scatter_add(node: Node, x: Array, dim: int, index: Array, source: Array) -> Array:
    return _scattered("add", x, dim, index, source)


def _scattered(how: str, x: Array, dim: int, index: Array, source: Any) -> Array:
    index = _vectors(index)
    if 0 in index.shape:
        return x
    values = array(source, x.dtype)
    if values.ndim or not isinstance(source, (bool, int, float, complex)):
        values = _vectors(values)[tuple(slice(size) for size in index.shape)]
    return getattr(_vectors(x).at[_along(dim, index)], how)(values).reshape(x.shape)


_REDUCES = {"sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


@rule("scatter_reduce.two scatter.reduce scatter.value_reduce")
def _scatter_reduce(
    node: Node, x: Array, dim: int, index: Array, source: Any, reduce: str, *, include_self: bool = True
) -> Array:
    how = _REDUCES[reduce]
    if 0 in index.shape:
        return x
    start = x if include_self else _scattered("set", x, dim, index, _neutral(how, x))
    found = _scattered(how, start, dim, index, source)
    if reduce != "mean":
        return found
    ones = jnp.ones(index.shape, x.dtype)
    many = _scattered("add", (jnp.ones_like if include_self else jnp.zeros_like)(x), dim, index, ones)
    many = jnp.maximum(many, 1)
    return jnp.floor_divide(found, many) if is_integer(x.dtype) else found / many


def _neutral(how: str, x: Array) -> Any:
    return {"add": 0, "mul": 1, "max": lowest(x.dtype), "min": highest(x.dtype)}[how]


def _selecting(x: Array, indices: Indices) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in indices)


@rule("index.Tensor")
def _index(node: Node, x: Array, indices: Indices) -> Array:
    if any(index is not None and index.dtype == jnp.bool_ for index in indices):
        raise NoRuleError("a mask, which selects as many elements as it holds")
    return x.at[_selecting(x, indices)].get(mode="clip").reshape(shape_of(node))


@rule("index_put")
def _index_put(node: Node, x: Array, indices: Indices, values: Array, accumulate: bool = False) -> Array:
    values = cast(values, x.dtype)
    masks = [i for i, index in enumerate(indices) if index is not None and index.dtype in (jnp.bool_, jnp.uint8)]
    if masks:
        return _masked_put(x, indices, values, accumulate)
    where = x.at[_selecting(x, indices)]
    return where.add(values) if accumulate else where.set(values)


def _masked_put(x: Array, indices: Indices, values: Array, accumulate: bool) -> Array:
    """Where a mask selects elements, values are the same for all of them."""
    given = [i for i, index in enumerate(indices) if index is not None]
    if len(given) > 1:
        raise NoRuleError("a mask beside other indices")
    mask: Array = indices[given[0]]
    before, behind = given[0], x.ndim - given[0] - mask.ndim
    if values.ndim > behind:
        first = values.ndim - behind
        if values.shape[first - 1] != 1:
            raise NoRuleError("a mask with a value for each element that it selects")
        values = values.reshape(*values.shape[: first - 1], *[1] * mask.ndim, *values.shape[first:])
    mask = mask.reshape([1] * before + list(mask.shape) + [1] * behind) != 0
    return jnp.where(mask, x + values if accumulate else values, x)


@rule("masked_scatter")
def _masked_scatter(node: Node, x: Array, mask: Array, source: Array) -> Array:
    mask = jnp.broadcast_to(mask, x.shape).reshape(-1)
    taken = source.reshape(-1)[jnp.clip(jnp.cumsum(mask) - 1, 0, source.size - 1)]
    return jnp.where(mask, taken, x.reshape(-1)).reshape(x.shape)


@rule("put")
def _put(node: Node, x: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    where = x.reshape(-1).at[index.reshape(-1)]
    return (where.add if accumulate else where.set)(source.reshape(-1)).reshape(x.shape)


@rule("index_reduce")
def _index_reduce(
    node: Node, x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    at = [slice(None)] * (dim % x.ndim)
    if reduce not in _REDUCES:
        raise NoRuleError(reduce)
    where = (*at, index)
    start = x if include_self else x.at[where].set(_neutral(_REDUCES[reduce], x))
    found = getattr(start.at[where], _REDUCES[reduce])(cast(source, x.dtype))
    if reduce != "mean":
        return found
    many = (jnp.ones_like if include_self else jnp.zeros_like)(x).at[where].add(1)
    return found / jnp.maximum(many, 1)

"""Rules of operators that combine elements along dimensions: sums, extremes, running values, orders."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from torch.fx import Node

from .table import DTYPES, Array, NoRuleError, axes, cast, dtype_of, is_complex, is_float, rule, shape_of, wide

Dims = int | Sequence[int] | None


def _total(function: Callable[..., Array], node: Node, x: Array, dims: Dims, keepdim: bool) -> Array:
    """Reduce in the type of the result, half types in float32."""
    dtype = dtype_of(node)
    return cast(function(cast(x, wide(dtype)), axis=axes(x, dims), keepdims=keepdim), dtype)


@rule("sum sum.dim_IntList")
def _sum(node: Node, x: Array, dim: Dims = None, keepdim: bool = False, **_: Any) -> Array:
    return _total(jnp.sum, node, x, dim, keepdim)


@rule("mean mean.dim")
def _mean(node: Node, x: Array, dim: Dims = None, keepdim: bool = False, **_: Any) -> Array:
    return _total(jnp.mean, node, x, dim, keepdim)


@rule("prod prod.dim_int")
def _prod(node: Node, x: Array, dim: Dims = None, keepdim: bool = False, **_: Any) -> Array:
    return _total(jnp.prod, node, x, dim, keepdim)


@rule("amax max")
def _amax(node: Node, x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return jnp.max(x, axes(x, dim), keepdims=keepdim)


@rule("amin min")
def _amin(node: Node, x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return jnp.min(x, axes(x, dim), keepdims=keepdim)


@rule("any any.dim any.dims")
def _any(node: Node, x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return cast(jnp.any(x != 0, axes(x, dim), keepdims=keepdim), dtype_of(node))


@rule("var.correction")
def _var(node: Node, x: Array, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Array:
    return cast(_variance(x, dim, correction, keepdim)[0], dtype_of(node))


@rule("var_mean.correction")
def _var_mean(node: Node, x: Array, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> list[Array]:
    found = _variance(x, dim, correction, keepdim)
    return [cast(value, DTYPES[like.dtype]) for value, like in zip(found, node.meta["val"], strict=True)]


def _variance(x: Array, dim: Dims, correction: float | None, keepdim: bool) -> tuple[Array, Array]:
    """As in eager, norms ask for less than ``float64``."""
    is_of_norm = (keepdim and correction == 0) or is_complex(x.dtype)
    x, dims = cast(x, wide(x.dtype) if is_of_norm else jnp.float64), axes(x, dim)
    many = math.prod(x.shape[i] for i in dims)
    mean = jnp.mean(x, dims, keepdims=True)
    squares = jnp.square(jnp.abs(x - mean)) if is_complex(x.dtype) else jnp.square(x - mean)
    total = jnp.sum(squares, dims, keepdims=keepdim)
    left = max(many - (1 if correction is None else correction), 0)
    return total / jnp.asarray(left, total.dtype), mean if keepdim else jnp.squeeze(mean, dims)


@rule("argmax")
def _argmax(node: Node, x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _index(jnp.argmax, node, x, dim, keepdim)


@rule("argmin")
def _argmin(node: Node, x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _index(jnp.argmin, node, x, dim, keepdim)


def _index(function: Callable[..., Array], node: Node, x: Array, dim: int | None, keepdim: bool) -> Array:
    x = cast(x, jnp.int8) if x.dtype == jnp.bool_ else x
    found = function(x.reshape(-1)) if dim is None or not x.ndim else function(x, dim, keepdims=keepdim)
    return found.astype(jnp.int64).reshape(shape_of(node))


@rule("max.dim")
def _max(node: Node, x: Array, dim: int, keepdim: bool = False) -> list[Array]:
    return _with_index(jnp.argmax, x, dim, keepdim)


@rule("min.dim")
def _min(node: Node, x: Array, dim: int, keepdim: bool = False) -> list[Array]:
    return _with_index(jnp.argmin, x, dim, keepdim)


def _with_index(function: Callable[..., Array], x: Array, dim: int, keepdim: bool) -> list[Array]:
    if not x.ndim:
        return [x, jnp.zeros((), jnp.int64)]
    index = function(cast(x, jnp.int8) if x.dtype == jnp.bool_ else x, dim, keepdims=True)
    return _taken(x, index, dim, keepdim)


def _taken(x: Array, index: Array, dim: int, keepdim: bool = True) -> list[Array]:
    """The elements at these indices, and the indices."""
    found = [jnp.take_along_axis(x, index, dim), index.astype(jnp.int64)]
    return found if keepdim else [jnp.squeeze(value, dim) for value in found]


@rule("cumsum")
def _cumsum(node: Node, x: Array, dim: int, **_: Any) -> Array:
    return _running(jnp.cumsum, node, x, dim)


@rule("cumprod")
def _cumprod(node: Node, x: Array, dim: int, **_: Any) -> Array:
    return _running(jnp.cumprod, node, x, dim)


def _running(function: Callable[..., Array], node: Node, x: Array, dim: int) -> Array:
    dtype = dtype_of(node)
    x = cast(x, wide(dtype))
    return cast(function(x, dim) if x.ndim else x, dtype)


@rule("logcumsumexp")
def _logcumsumexp(node: Node, x: Array, dim: int) -> Array:
    return cast(lax.cumlogsumexp(cast(x, wide(x.dtype)), dim % x.ndim), x.dtype) if x.ndim else x


@rule("cummax")
def _cummax(node: Node, x: Array, dim: int) -> list[Array]:
    return _extremes(jnp.greater_equal, x, dim)


@rule("cummin")
def _cummin(node: Node, x: Array, dim: int) -> list[Array]:
    return _extremes(jnp.less_equal, x, dim)


def _extremes(passes: Callable[[Array, Array], Array], x: Array, dim: int) -> list[Array]:
    """Running extremes with the index of each, of equal ones the last. A NaN passes everything but another."""
    if not x.ndim:
        return [x, jnp.zeros((), jnp.int64)]

    def later(before: tuple[Array, Array], after: tuple[Array, Array]) -> tuple[Array, Array]:
        taken = passes(after[0], before[0])
        if is_float(x.dtype):
            taken = jnp.isnan(after[0]) | (taken & ~jnp.isnan(before[0]))
        return jnp.where(taken, after[0], before[0]), jnp.where(taken, after[1], before[1])

    index = lax.broadcasted_iota(jnp.int64, x.shape, dim % x.ndim)
    return list(lax.associative_scan(later, (x, index), axis=dim % x.ndim))


@rule("_softmax")
def _softmax(node: Node, x: Array, dim: int, half_to_float: bool = False) -> Array:
    dtype = dtype_of(node)
    return cast(jax.nn.softmax(cast(x, wide(dtype)), dim), dtype) if x.ndim else jnp.ones((), dtype)


@rule("_log_softmax")
def _log_softmax(node: Node, x: Array, dim: int, half_to_float: bool = False) -> Array:
    dtype = dtype_of(node)
    return cast(jax.nn.log_softmax(cast(x, wide(dtype)), dim), dtype) if x.ndim else jnp.zeros((), dtype)


@rule("sort")
def _sort(node: Node, x: Array, dim: int = -1, descending: bool = False) -> list[Array]:
    return _sorted(x, dim, descending)


@rule("sort.stable")
def _sort_stable(node: Node, x: Array, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> list[Array]:
    return _sorted(x, dim, descending)


def _sorted(x: Array, dim: int, descending: bool, first: int = 0, last: int | None = None) -> list[Array]:
    """The elements in order with their indices, from ``first`` to ``last``. NaNs are the largest."""
    if not x.ndim:
        return [x, jnp.zeros((), jnp.int64)]
    dim %= x.ndim
    index = jnp.argsort(x, dim, stable=True, descending=descending)
    return _taken(x, lax.slice_in_dim(index, first, x.shape[dim] if last is None else last, 1, dim), dim)


@rule("topk")
def _topk(node: Node, x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Array]:
    return _sorted(x, dim, largest, 0, k)


@rule("kthvalue")
def _kth(node: Node, x: Array, k: int, dim: int = -1, keepdim: bool = False) -> list[Array]:
    found = _sorted(x, dim, False, k - 1, k)
    return found if keepdim or not x.ndim else [jnp.squeeze(value, dim) for value in found]


@rule("median")
def _median(node: Node, x: Array) -> Array:
    """The lower of two in the middle; a NaN if there is one."""
    found = jnp.sort(x.reshape(-1))[(x.size - 1) // 2]
    return jnp.where(jnp.any(jnp.isnan(x)), jnp.asarray(jnp.nan, x.dtype), found) if is_float(x.dtype) else found


@rule("bucketize.Tensor searchsorted.Tensor")
def _bucketize(node: Node, x: Array, bounds: Array, out_int32: bool = False, right: bool = False, **other: Any) -> Array:
    if node.target.overloadpacket.__name__ == "searchsorted":  # type: ignore[union-attr]
        x, bounds = bounds, x
    if bounds.ndim != 1 or any(value is not None for value in other.values()):
        raise NoRuleError("rows of bounds, or a sorter")
    return jnp.searchsorted(bounds, x, side="right" if right else "left").astype(dtype_of(node))


@rule("histc")
def _histc(node: Node, x: Array, bins: int = 100, min: float = 0, max: float = 0) -> Array:
    if min == max:
        raise NoRuleError("a range that depends on the values")
    inside = cast((x >= min) & (x <= max), dtype_of(node)).reshape(-1)
    index = jnp.clip(jnp.floor((x.reshape(-1) - min) / (max - min) * bins), 0, bins - 1).astype(jnp.int64)
    return jnp.zeros(bins, dtype_of(node)).at[index].add(inside)

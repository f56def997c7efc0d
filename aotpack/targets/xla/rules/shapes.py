"""Rules of operators that make values, or move them: constants, views, slices, joins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch.fx import Node

from .table import DTYPES, RULES, Array, NoRuleError, array, cast, dtype_of, rule, shape_of, traced


def _filled(node: Node, value: Any) -> Array:
    return jnp.full(shape_of(node), value, dtype_of(node))


@rule("full")
def _full(node: Node, size: Sequence[int], value: Any, **_: Any) -> Array:
    return _filled(node, value)


@rule("full_like")
def _full_like(node: Node, x: Array, value: Any, **_: Any) -> Array:
    return _filled(node, value)


@rule("empty.memory_format empty_strided new_empty_strided empty_permuted")
def _zeros(node: Node, *_: Any, **__: Any) -> Array:
    return _filled(node, 0)


@rule("scalar_tensor")
def _scalar(node: Node, value: Any, **_: Any) -> Array:
    return array(value, dtype_of(node))


@rule("arange.start_step")
def _arange(node: Node, start: Any, end: Any, step: Any = 1, **_: Any) -> Array:
    dtype = dtype_of(node)
    if jnp.issubdtype(dtype, jnp.floating):
        return _constant(torch.arange(start, end, step, dtype=traced(node).dtype, device="cpu"), dtype)
    return lax.iota(jnp.int64, shape_of(node)[0]).astype(dtype) * array(step, dtype) + array(start, dtype)


@rule("linspace logspace")
def _range(node: Node, start: float, end: float, steps: int, *base: float, **_: Any) -> Array:
    operator: Any = node.target
    return _constant(operator(start, end, steps, *base, dtype=traced(node).dtype, device="cpu"), dtype_of(node))


def _constant(values: torch.Tensor, dtype: Any) -> Array:
    """Numbers that torch's kernel makes: it rounds them in ways of its own."""
    return jnp.asarray((values.double() if values.is_floating_point() else values).numpy(), dtype)


RULES[torch.ops.prims.iota.default] = lambda node, length, start, step, **_: (
    jnp.arange(length, dtype=dtype_of(node)) * step + start
)


@rule("tril_indices")
def _lower_indices(node: Node, rows: int, columns: int, offset: int = 0, **_: Any) -> Array:
    return jnp.asarray(np.stack(np.tril_indices(rows, offset, columns)), dtype_of(node))


@rule("triu_indices")
def _upper_indices(node: Node, rows: int, columns: int, offset: int = 0, **_: Any) -> Array:
    return jnp.asarray(np.stack(np.triu_indices(rows, offset, columns)), dtype_of(node))


@rule("view squeeze.dims unsqueeze _reshape_copy")
def _reshape(node: Node, x: Array, *_: Any) -> Array:
    return x.reshape(shape_of(node))


@rule("view.dtype")
def _reinterpret(node: Node, x: Array, dtype: torch.dtype) -> Array:
    """The same bytes as elements of another type, of which the last dimension has more or fewer."""
    many = jnp.dtype(DTYPES[dtype]).itemsize / x.dtype.itemsize
    if many > 1:
        x = x.reshape(*x.shape[:-1], x.shape[-1] // int(many), int(many))
    if x.dtype == jnp.bool_ or dtype is torch.bool:
        raise NoRuleError("the bytes of bools")
    return lax.bitcast_convert_type(x, DTYPES[dtype]).reshape(shape_of(node))


@rule("expand")
def _expand(node: Node, x: Array, *_: Any, **__: Any) -> Array:
    return jnp.broadcast_to(x, shape_of(node))


@rule("permute")
def _permute(node: Node, x: Array, dims: Sequence[int]) -> Array:
    return jnp.transpose(x, [dim % x.ndim for dim in dims])


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


@rule("slice.Tensor")
def _slice(node: Node, x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return lax.slice_in_dim(x, *_bounds(x.shape[dim], start, end), step, dim % x.ndim)


@rule("select.int")
def _select(node: Node, x: Array, dim: int, index: int) -> Array:
    return lax.index_in_dim(x, index % x.shape[dim], dim % x.ndim, keepdims=False)


@rule("slice_scatter")
def _slice_scatter(
    node: Node, x: Array, source: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    where: list[slice] = [slice(None)] * x.ndim
    where[dim] = slice(*_bounds(x.shape[dim], start, end), step)
    return x.at[tuple(where)].set(cast(source, x.dtype))


@rule("diagonal")
def _diagonal(node: Node, x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    return jnp.diagonal(x, offset, dim1, dim2)


@rule("diagonal_scatter")
def _diagonal_scatter(node: Node, x: Array, source: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    where = np.diagonal(np.arange(x.size).reshape(x.shape), offset, dim1, dim2).reshape(-1)
    return x.reshape(-1).at[where].set(cast(source, x.dtype).reshape(-1)).reshape(x.shape)


@rule("cat")
def _cat(node: Node, parts: Sequence[Array], dim: int = 0) -> Array:
    """An empty vector joins anything."""
    rank = node.meta["val"].dim()
    joined = [cast(part, dtype_of(node)) for part in parts if part.ndim == rank or part.shape != (0,)]
    return jnp.concatenate(joined, dim)


@rule("flip")
def _flip(node: Node, x: Array, dims: Sequence[int]) -> Array:
    return jnp.flip(x, tuple(dims)) if x.ndim else x


RULES[torch.ops.prims.rev.default] = _flip


@rule("repeat")
def _repeat(node: Node, x: Array, many: Sequence[int]) -> Array:
    return jnp.tile(x, tuple(many))


@rule("split_with_sizes split_copy.Tensor")
def _split(node: Node, x: Array, sizes: int | Sequence[int], dim: int = 0) -> list[Array]:
    dim %= x.ndim
    ends = np.cumsum([part.shape[dim] for part in node.meta["val"]]).tolist()
    return [lax.slice_in_dim(x, start, end, 1, dim) for start, end in zip([0, *ends], ends, strict=False)]


@rule("constant_pad_nd")
def _pad(node: Node, x: Array, pads: Sequence[int], value: Any = 0) -> Array:
    sides = [(0, 0, 0)] * x.ndim
    for i, (low, high) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        sides[x.ndim - 1 - i] = (low, high, 0)
    return lax.pad(x, array(value, x.dtype), sides)


@rule("as_strided")
def _as_strided(node: Node, x: Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Array:
    """By where memory has the elements of ``x`` in eager."""
    value = node.args[0].meta["val"]  # type: ignore[union-attr]
    places, wanted = _places(value.shape, value.stride(), 0).reshape(-1), _places(size, stride, storage_offset or 0)
    order = np.argsort(places, kind="stable")
    found = order[np.minimum(np.searchsorted(places[order], wanted), max(len(places) - 1, 0))]
    if value.storage_offset() or not np.array_equal(places[found], wanted):
        raise NoRuleError("it reads memory between the elements of the tensor, and values in XLA have no strides")
    return x.reshape(-1)[found]


def _places(size: Sequence[int], stride: Sequence[int], offset: int) -> Any:
    places: Any = np.full((), offset)
    for many, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(many) * step
    return places


@rule("_local_scalar_dense")
def _item(node: Node, x: Array) -> Array:
    return x.reshape(())

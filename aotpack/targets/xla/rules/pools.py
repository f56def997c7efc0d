"""Rules of pools: windows over an image, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from torch.fx import Node

from .table import RULES, Array, Rule, cast, lowest, operators, rule, wide

_Sizes = Sequence[int]


def _each(sizes: int | _Sizes, rank: int, default: _Sizes = ()) -> list[int]:
    """A size for each dimension: one is for all, and none is the default."""
    found = ([sizes] if isinstance(sizes, int) else list(sizes)) or list(default)
    return found * rank if len(found) == 1 else found


def _windows(sizes: _Sizes, kernel: _Sizes, stride: _Sizes, padding: _Sizes, dilation: _Sizes, ceil: bool) -> tuple[Any, Any]:
    """For each window and each of its elements: the element's index in the channel, and whether it is in the image."""
    rank = len(sizes)
    inside: Any = np.ones([1] * (2 * rank), bool)
    index: Any = np.zeros([1] * (2 * rank), int)
    outputs = []
    for i, (size, k, s, p, d) in enumerate(zip(sizes, kernel, stride, padding, dilation, strict=True)):
        left = size + 2 * p - d * (k - 1) - 1
        many = (-(-left // s) if ceil else left // s) + 1
        if ceil and (many - 1) * s >= size + p:  # every window begins in the image or in its padding on the left
            many -= 1
        outputs.append(many)
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = many, k
        at = (np.arange(many)[:, None] * s + np.arange(k) * d - p).reshape(shape)
        inside = inside & (at >= 0) & (at < size)
        index = index * size + np.clip(at, 0, size - 1)
    return index.reshape(*outputs, -1), np.broadcast_to(inside, [*outputs, *kernel]).reshape(*outputs, -1)


def _elements(x: Array, index: Any, inside: Any, fill: Any) -> Array:
    """The elements of all windows, in a last dimension; ``fill`` outside the image."""
    rank = index.ndim - 1
    flat = x.reshape(*x.shape[: x.ndim - rank], -1)
    return jnp.where(inside, jnp.take(flat, index, -1, mode="clip"), jnp.asarray(fill, x.dtype))


def _max_pool(rank: int) -> Rule:
    def pool(
        node: Node,
        x: Array,
        kernel: _Sizes,
        stride: _Sizes = (),
        padding: _Sizes = (0,),
        dilation: _Sizes = (1,),
        ceil: bool = False,
    ) -> list[Array]:
        kernel = _each(kernel, rank)
        sides = _each(stride, rank, kernel), _each(padding, rank), _each(dilation, rank)
        index, inside = _windows(x.shape[-rank:], kernel, *sides, ceil)
        values = _elements(x, index, inside, lowest(x.dtype))
        best = jnp.argmax(values, -1, keepdims=True)
        found = jnp.take_along_axis(jnp.broadcast_to(index, values.shape), best, -1)
        return [jnp.take_along_axis(values, best, -1)[..., 0], found[..., 0].astype(jnp.int64)]

    return pool


def _max_pool_backward(rank: int) -> Rule:
    """From the indices alone, the last argument; of the image only the size is read."""

    def pull(node: Node, gradient: Array, x: Array, *window: Any) -> Array:
        rows, size = math.prod(x.shape[:-rank]), math.prod(x.shape[-rank:])
        where = jnp.arange(rows)[:, None], window[-1].reshape(rows, -1)
        return jnp.zeros((rows, size), gradient.dtype).at[where].add(gradient.reshape(rows, -1)).reshape(x.shape)

    return pull


def _average(rank: int) -> Callable[..., Array]:
    def pool(
        x: Array,
        kernel: _Sizes,
        stride: _Sizes = (),
        padding: _Sizes = (0,),
        ceil: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
    ) -> Array:
        kernel = _each(kernel, rank)
        stride, padding = _each(stride, rank, kernel), _each(padding, rank)
        sizes = x.shape[-rank:]
        index, inside = _windows(sizes, kernel, stride, padding, [1] * rank, ceil)
        total = jnp.sum(_elements(cast(x, wide(x.dtype)), index, inside, 0), -1)
        counts: Any = inside.sum(-1)
        if divisor is not None:
            counts = divisor
        elif count_include_pad:  # padding counts, and what ``ceil`` adds beyond it does not
            counts = np.ones([1] * rank)
            for i, (size, k, s, p) in enumerate(zip(sizes, kernel, stride, padding, strict=True)):
                first = np.arange(index.shape[i]) * s - p
                counts = counts * (np.minimum(first + k, size + p) - first).reshape([-1 if j == i else 1 for j in range(rank)])
        return cast(total / jnp.asarray(counts, total.dtype), x.dtype)

    return pool


def _adaptive_average(x: Array, output_size: _Sizes) -> Array:
    """One dimension after another: the sizes are known."""
    dtype, x = x.dtype, cast(x, wide(x.dtype))
    for dim, many in zip((-2, -1), output_size, strict=True):
        size = x.shape[dim]
        ends = [(i * size // many, -(-(i + 1) * size // many)) for i in range(many)]
        parts = [jnp.mean(jnp.take(x, np.arange(start, end), dim, mode="clip"), dim) for start, end in ends]
        x = jnp.stack(parts, dim)
    return cast(x, dtype)


def _plain(function: Callable[..., Array]) -> Rule:
    return lambda node, x, *options: function(x, *options)


def _gradient(function: Callable[..., Array]) -> Rule:
    """The gradient of a linear function of an image."""
    return lambda node, gradient, x, *options: jax.vjp(lambda x: function(x, *options), x)[1](gradient)[0]


@rule("_adaptive_avg_pool2d")
def _adaptive_rule(node: Node, x: Array, output_size: _Sizes) -> Array:
    return _adaptive_average(x, output_size)


@rule("_adaptive_avg_pool2d_backward")
def _adaptive_backward(node: Node, gradient: Array, x: Array) -> Array:
    return _gradient(_adaptive_average)(node, gradient, x, gradient.shape[-2:])


def _replicated(x: Array, padding: _Sizes) -> Array:
    """An image with ``padding`` copies of its edges around it, the last dimension's first."""
    sides = list(zip(padding[::2], padding[1::2], strict=True))[::-1]
    return jnp.pad(x, [(0, 0)] * (x.ndim - len(sides)) + sides, mode="edge")


for _operator in operators("replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward"):
    RULES[_operator] = _gradient(_replicated)
for _rank in (2, 3):
    _forward, _backward, _maxima, _of_maxima = operators(
        f"avg_pool{_rank}d avg_pool{_rank}d_backward max_pool{_rank}d_with_indices max_pool{_rank}d_with_indices_backward"
    )
    RULES[_forward] = _plain(_average(_rank))
    RULES[_backward] = _gradient(_average(_rank))
    RULES[_maxima], RULES[_of_maxima] = _max_pool(_rank), _max_pool_backward(_rank)

"""Rules of random numbers: they are drawn from ``key``, not from a generator of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from torch.fx import Node

from .table import Array, cast, dtype_of, rule, shape_of, wide


def _drawn(node: Node, draw: Callable[[Any], Array]) -> Array:
    """Numbers drawn in float32 for half types, of which there are too few between 0 and 1."""
    return cast(draw(wide(dtype_of(node))), dtype_of(node))


def _uniform(node: Node, key: Array, low: float = 0, high: float = 1) -> Array:
    return _drawn(node, lambda dtype: jax.random.uniform(key, shape_of(node), dtype, low, high))


def _normal(node: Node, key: Array, mean: Any = 0, std: Any = 1) -> Array:
    return _drawn(node, lambda dtype: jax.random.normal(key, shape_of(node), dtype) * std + mean)


def _integers(node: Node, key: Array, low: int, high: int) -> Array:
    return jax.random.randint(key, shape_of(node), low, high, jnp.int64).astype(dtype_of(node))


@rule("rand rand_like", random=True)
def _rand(node: Node, *_: Any, key: Array, **__: Any) -> Array:
    return _uniform(node, key)


@rule("uniform", random=True)
def _uniform_rule(node: Node, x: Array, low: float = 0, high: float = 1, *, key: Array, **_: Any) -> Array:
    return _uniform(node, key, low, high)


@rule("randn randn_like", random=True)
def _randn(node: Node, *_: Any, key: Array, **__: Any) -> Array:
    return _normal(node, key)


@rule("normal_functional", random=True)
def _normal_like(node: Node, x: Array, mean: float = 0, std: float = 1, *, key: Array, **_: Any) -> Array:
    return _normal(node, key, mean, std)


@rule("normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor", random=True)
def _normal_of(node: Node, mean: Any, std: Any = 1, *, key: Array, **_: Any) -> Array:
    return _normal(node, key, mean, std)


@rule("bernoulli.p bernoulli.Tensor", random=True)
def _bernoulli(node: Node, x: Array, p: Any = 0.5, *, key: Array, **_: Any) -> Array:
    return jax.random.bernoulli(key, p, x.shape).astype(dtype_of(node))


@rule("randint", random=True)
def _randint(node: Node, high: int, size: Sequence[int], *, key: Array, **_: Any) -> Array:
    return _integers(node, key, 0, high)


@rule("randint.low", random=True)
def _randint_from(node: Node, low: int, high: int, size: Sequence[int], *, key: Array, **_: Any) -> Array:
    return _integers(node, key, low, high)


@rule("randint_like", random=True)
def _randint_like(node: Node, x: Array, high: int, *, key: Array, **_: Any) -> Array:
    return _integers(node, key, 0, high)


@rule("randint_like.low_dtype random.from", random=True)
def _randint_like_from(node: Node, x: Array, low: int, high: int, *, key: Array, **_: Any) -> Array:
    return _integers(node, key, low, high)


@rule("randperm", random=True)
def _randperm(node: Node, many: int, *, key: Array, **_: Any) -> Array:
    return jax.random.permutation(key, many).astype(dtype_of(node))


@rule("exponential", random=True)
def _exponential(node: Node, x: Array, rate: float = 1, *, key: Array, **_: Any) -> Array:
    return _drawn(node, lambda dtype: jax.random.exponential(key, x.shape, dtype) / rate)


@rule("poisson", random=True)
def _poisson(node: Node, rates: Array, *, key: Array, **_: Any) -> Array:
    return jax.random.poisson(key, rates).astype(dtype_of(node))


@rule("multinomial", random=True)
def _multinomial(node: Node, weights: Array, many: int, replacement: bool = False, *, key: Array, **_: Any) -> Array:
    logits = jnp.log(weights)
    if replacement:
        drawn = jax.random.categorical(key, logits[..., None, :], shape=shape_of(node), axis=-1)
    else:  # the largest of the logits with noise (Gumbel) are a sample
        drawn = jnp.argsort(-(logits + jax.random.gumbel(key, weights.shape, logits.dtype)), -1)[..., :many]
    return drawn.astype(jnp.int64)

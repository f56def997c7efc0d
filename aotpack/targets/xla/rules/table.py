"""The table of rules, and what all rules share: types, casts, and numbers as arrays.

A rule computes one operator of torch with jax. It gets the operator's node, whose ``meta["val"]`` has the
types of the results, and then the operator's arguments, with arrays in place of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import torch
from torch.fx import Node

Rule = Callable[..., Any]
Array = Any
"""A ``jax.Array``."""

RULES: dict[object, Rule] = {}
"""Maps an operator to its rule."""
RANDOM: set[object] = set()
"""The operators whose rules draw random numbers: these also take ``key``."""

DTYPES: dict[torch.dtype, Any] = {
    getattr(torch, name): getattr(jnp, name)
    for name in (
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
} | {torch.bool: jnp.bool_}
"""Maps torch's element types to those of jax."""


class NoRuleError(Exception):
    """A rule does not take these arguments of its operator."""


def operators(names: str) -> list[torch._ops.OpOverload]:
    """The operators of ``aten`` with these names, as in ``"add.Tensor mm"``; without an overload: the default."""
    found = []
    for name in names.split():
        packet, _, overload = name.partition(".")
        found.append(getattr(getattr(torch.ops.aten, packet), overload or "default"))
    return found


def rule(names: str, *, random: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule of these operators of ``aten``; for the names see :func:`operators`."""

    def register(function: Rule) -> Rule:
        for operator in operators(names):
            RULES[operator] = function
            if random:
                RANDOM.add(operator)
        return function

    return register


def traced(node: Node) -> torch.Tensor:
    """The fake tensor of a node with one result."""
    value: torch.Tensor = node.meta["val"]
    return value


def dtype_of(node: Node) -> Any:
    """The element type of a node's result."""
    return DTYPES[traced(node).dtype]


def shape_of(node: Node) -> tuple[int, ...]:
    """The sizes of a node's result."""
    return tuple(traced(node).shape)


def is_float(dtype: Any) -> bool:
    """Whether elements are real numbers with a point."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


def is_integer(dtype: Any) -> bool:
    """Whether elements are whole numbers; bools are not."""
    return bool(jnp.issubdtype(dtype, jnp.integer))


def is_complex(dtype: Any) -> bool:
    """Whether elements are complex numbers."""
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


def wide(dtype: Any) -> Any:
    """The type in which torch's kernels compute values of a type: float32 for half types."""
    return jnp.float32 if is_float(dtype) and jnp.dtype(dtype).itemsize < 4 else dtype


def cast(x: Array, dtype: Any) -> Array:
    """Convert as ``Tensor.to`` does: bools say what is not 0, complex numbers lose their imaginary part."""
    if x.dtype == dtype:
        return x
    if dtype == jnp.bool_:
        return x != 0
    if is_complex(x.dtype) and not is_complex(dtype):
        x = x.real
    if is_float(x.dtype) and jnp.issubdtype(dtype, jnp.unsignedinteger):
        wrapped = x.astype(jnp.int64).astype(dtype)  # negative numbers wrap, as in torch's kernels
        return jnp.where(x < 2.0**63, wrapped, x.astype(dtype)) if dtype == jnp.uint64 else wrapped
    return x.astype(dtype)


def array(value: Any, dtype: Any) -> Array:
    """A number or an array as an array of a type."""
    return jnp.asarray(value, dtype) if isinstance(value, (bool, int, float, complex)) else cast(value, dtype)


def lowest(dtype: Any) -> Any:
    """The identity of a maximum."""
    if dtype == jnp.bool_:
        return False
    return -jnp.inf if is_float(dtype) else jnp.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    """The identity of a minimum."""
    if dtype == jnp.bool_:
        return True
    return jnp.inf if is_float(dtype) else jnp.iinfo(dtype).max


def axes(x: Array, dims: int | Sequence[int] | None) -> tuple[int, ...]:
    """Dimensions as torch names them: none are all, and a scalar has a dimension -1."""
    if dims is None or dims == [] or dims == () or not x.ndim:
        return tuple(range(x.ndim))
    return tuple(dim % x.ndim for dim in ([dims] if isinstance(dims, int) else dims))

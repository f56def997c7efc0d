"""Rules of operators that compute each element from those at the same place.

torch's kernels compute half types in float32, and so do these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.scipy import special
from torch.fx import Node

from .table import DTYPES, RULES, Array, Rule, array, cast, dtype_of, is_complex, is_float, is_integer, operators, rule, wide


def _elementwise(function: Callable[..., Array]) -> Rule:
    """The rule that applies ``function`` in the type of the result, half types in float32."""

    def apply(node: Node, *operands: Any, **_: Any) -> Array:
        dtype = dtype_of(node)
        return cast(function(*[array(operand, wide(dtype)) for operand in operands]), dtype)

    return apply


def _whole(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function that rounds, for whole numbers too."""
    return lambda x: x if is_integer(x.dtype) else function(x)


def _sign(x: Array) -> Array:
    return jnp.sign(x) if is_complex(x.dtype) else cast(x > 0, x.dtype) - cast(x < 0, x.dtype)


def _relu(x: Array) -> Array:
    return jnp.where(x < 0, jnp.zeros((), x.dtype), x)


def _fmod(x: Array, y: Array) -> Array:
    return lax.rem(*jnp.broadcast_arrays(x, y))


def _remainder(x: Array, y: Array) -> Array:
    found = _fmod(x, y)
    return jnp.where((found != 0) & ((found < 0) != (y < 0)), found + y, found)


def _shift_left(x: Array, many: Array) -> Array:
    return jnp.where(_shifts_out(x, many), 0, jnp.left_shift(x, many))


def _shift_right(x: Array, many: Array) -> Array:
    return jnp.where(_shifts_out(x, many), jnp.where(x < 0, jnp.asarray(-1).astype(x.dtype), 0), jnp.right_shift(x, many))


def _shifts_out(x: Array, many: Array) -> Array:
    return (many < 0) | (many >= x.dtype.itemsize * 8)


_UNARY: dict[str, Callable[[Array], Array]] = {
    "_conj": jnp.conj,
    "_neg_view": jnp.negative,
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "angle": jnp.angle,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "bitwise_not": jnp.bitwise_not,
    "ceil": _whole(jnp.ceil),
    "_conj_physical": jnp.conj,
    "conj_physical": jnp.conj,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "digamma": special.digamma,
    "erf": special.erf,
    "erfc": special.erfc,
    "erfinv": special.erfinv,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "floor": _whole(jnp.floor),
    "i0": special.i0,
    "lgamma": special.gammaln,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": lambda x: jnp.log(x) / math.log(2),
    "neg": jnp.negative,
    "reciprocal": lambda x: 1 / x,
    "relu": _relu,
    "round": _whole(jnp.round),
    "rsqrt": lambda x: 1 / jnp.sqrt(x) if is_complex(x.dtype) else lax.rsqrt(x),
    "sgn": _sign,
    "sigmoid": jax.nn.sigmoid,
    "sign": _sign,
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "special_i1": special.i1,
    "special_ndtri": special.ndtri,
    "sqrt": jnp.sqrt,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "trunc": _whole(jnp.trunc),
}
RULES |= {operator: _elementwise(function) for name, function in _UNARY.items() for operator in operators(name)}

_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "atan2": jnp.arctan2,
    "bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor": jnp.bitwise_and,
    "bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor": jnp.bitwise_or,
    "bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor": jnp.bitwise_xor,
    "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar": _shift_left,
    "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar": _shift_right,
    "copysign.Tensor copysign.Scalar": jnp.copysign,
    "div.Tensor div.Scalar": jnp.divide,
    "fmax": jnp.fmax,
    "fmin": jnp.fmin,
    "fmod.Tensor fmod.Scalar": _fmod,
    "gcd": jnp.gcd,
    "hypot": jnp.hypot,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "mul.Tensor mul.Scalar": jnp.multiply,
    "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor": _remainder,
    "special_zeta": special.zeta,
}
RULES |= {operator: _elementwise(function) for names, function in _BINARY.items() for operator in operators(names)}

_TESTS: dict[str, Callable[[Array], Array]] = {
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "logical_not": lambda x: x == 0,
    "signbit": lambda x: jnp.signbit(x) if is_float(x.dtype) else x < 0,
}
RULES |= {operators(name)[0]: lambda node, x, f=function: f(x) for name, function in _TESTS.items()}


@rule("nextafter")
def _next(node: Node, x: Array, y: Array) -> Array:
    dtype = dtype_of(node)
    return jnp.nextafter(array(x, dtype), array(y, dtype))


@rule("add.Tensor add.Scalar")
def _add(node: Node, x: Any, y: Any, alpha: Any = 1) -> Array:
    dtype = dtype_of(node)
    x, y = _terms(dtype, x, y)
    if dtype == jnp.bool_:
        return x | (y if alpha else jnp.zeros_like(y))
    return cast(x + (y if alpha == 1 else y * array(alpha, y.dtype)), dtype)


@rule("sub.Tensor sub.Scalar")
def _subtract(node: Node, x: Any, y: Any, alpha: Any = 1) -> Array:
    dtype = dtype_of(node)
    x, y = _terms(dtype, x, y)
    return cast(x - (y if alpha == 1 else y * array(alpha, y.dtype)), dtype)


def _terms(dtype: Any, *values: Any) -> tuple[Array, ...]:
    """The terms of a sum: eager rounds each to the type of the result, a number too, and adds half types in float32."""
    return tuple(array(array(value, dtype), wide(dtype)) for value in values)


@rule("div.Tensor_mode div.Scalar_mode")
def _divide(node: Node, x: Any, y: Any, rounding_mode: str | None = None) -> Array:
    dtype, several = dtype_of(node), getattr(y, "ndim", 0) > 0
    x, y = jnp.broadcast_arrays(array(x, wide(dtype)), array(y, wide(dtype)))
    if rounding_mode is None:
        return cast(x / y, dtype)
    if is_integer(dtype):
        return lax.div(x, y) if rounding_mode == "trunc" else jnp.floor_divide(x, y)
    if rounding_mode == "floor":
        return cast(_floor_divide(x, y), dtype)
    quotient = x / y
    return cast(
        jnp.trunc(cast(quotient, dtype) if several else quotient), dtype
    )  # eager rounds first unless it divides by a number


def _floor_divide(x: Array, y: Array) -> Array:
    """Quotients rounded down, as torch computes them: from the remainder. A quotient that was rounded up is off by one."""
    remainder, exact = lax.rem(x, y), x / y
    quotient = (x - remainder) / y
    quotient = jnp.where((remainder != 0) & ((remainder < 0) != (y < 0)), quotient - 1, quotient)
    rounded = jnp.floor(quotient)
    rounded = jnp.where(quotient - rounded > 0.5, rounded + 1, rounded)
    rounded = jnp.where(quotient != 0, rounded, jnp.copysign(jnp.zeros_like(exact), exact))
    return jnp.where(y == 0, exact, rounded)


@rule("pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar")
def _power(node: Node, x: Any, y: Any) -> Array:
    dtype = dtype_of(node)
    base = array(x, wide(dtype))
    if isinstance(y, (int, float)) and float(y).is_integer() and 0 <= abs(y) <= 8 and (y >= 0 or not is_integer(dtype)):
        return cast(lax.integer_pow(base, int(y)), dtype)
    if isinstance(y, float) and abs(y) == 0.5 and dtype != jnp.float16 and is_float(dtype):  # eager's float16 is a power
        return cast(jnp.sqrt(base) if y > 0 else lax.rsqrt(base), dtype)
    return cast(jnp.power(base, array(y, wide(dtype))), dtype)


@rule("ldexp.Tensor")
def _ldexp(node: Node, x: Array, exponent: Array) -> Array:
    dtype = dtype_of(node)
    base = array(x, wide(dtype))
    if is_float(x.dtype) and is_integer(exponent.dtype):
        return cast(jnp.ldexp(base, exponent), dtype)
    return cast(base * jnp.power(2.0, array(exponent, wide(dtype))), dtype)


_COMPARISONS = {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}


def _comparison(function: Callable[[Array, Array], Array]) -> Rule:
    """The rule that compares in the common type of both operands."""

    def compare(node: Node, x: Any, y: Any) -> Array:
        operands: list[Any] = [item.meta["val"] if isinstance(item, Node) else item for item in node.args[:2]]
        dtype = DTYPES[torch.result_type(*operands)]
        return function(array(x, dtype), array(y, dtype))

    return compare


RULES |= {
    operator: _comparison(function)
    for name, function in _COMPARISONS.items()
    for operator in operators(f"{name}.Tensor {name}.Scalar")
}
RULES |= {
    operators(name)[0]: lambda node, x, y, f=function: f(x != 0, y != 0)
    for name, function in {"logical_and": jnp.logical_and, "logical_or": jnp.logical_or, "logical_xor": jnp.not_equal}.items()
}


@rule("where.self")
def _where(node: Node, condition: Array, x: Any, y: Any) -> Array:
    return jnp.where(condition != 0, array(x, dtype_of(node)), array(y, dtype_of(node)))


@rule("clamp clamp.Tensor")
def _clamp(node: Node, x: Array, min: Any = None, max: Any = None) -> Array:
    dtype = dtype_of(node)
    x = cast(x, dtype)
    x = x if min is None else jnp.maximum(x, array(min, dtype))
    return x if max is None else jnp.minimum(x, array(max, dtype))


@rule("abs")
def _abs(node: Node, x: Array) -> Array:
    return cast(jnp.abs(x), dtype_of(node))


@rule("_to_copy")
def _convert(node: Node, x: Array, **_: Any) -> Array:
    return cast(x, dtype_of(node))


RULES[torch.ops.prims.convert_element_type.default] = lambda node, x, dtype: cast(x, dtype_of(node))


@rule("clone alias lift_fresh_copy")
def _same(node: Node, x: Array, **_: Any) -> Array:
    return x


@rule("gelu")
def _gelu(node: Node, x: Array, approximate: str = "none") -> Array:
    return cast(jax.nn.gelu(cast(x, wide(x.dtype)), approximate=approximate == "tanh"), x.dtype)


@rule("polygamma")
def _polygamma(node: Node, order: int, x: Array) -> Array:
    return special.polygamma(order, cast(x, dtype_of(node)))


@rule("complex")
def _complex(node: Node, real: Array, imaginary: Array) -> Array:
    return lax.complex(*jnp.broadcast_arrays(real, imaginary))


@rule("polar")
def _polar(node: Node, length: Array, angle: Array) -> Array:
    return lax.complex(length * jnp.cos(angle), length * jnp.sin(angle))


@rule("view_as_real")
def _as_real(node: Node, x: Array) -> Array:
    return jnp.stack([x.real, x.imag], -1)


@rule("view_as_complex")
def _as_complex(node: Node, x: Array) -> Array:
    return lax.complex(x[..., 0], x[..., 1])


@rule("real")
def _real(node: Node, x: Array) -> Array:
    return jnp.real(x)


@rule("imag")
def _imag(node: Node, x: Array) -> Array:
    return jnp.imag(x)

"""Rules for Inductor that differ from its own: it decomposes operators as these say, or not at all.

Both the trace of a model and AOTInductor's trace of a bundle's graph follow them. The rules here make
faster code. Others, which correct torch, are among the fixes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch._inductor.decomposition import decompositions
from torch._prims_common import suggest_memory_format

from ..api import gradient_rules, negative_indices
from ..api.half_rules import divided, rounded_once
from ..api.moments import moments
from ..api.norms import norms_of_constants
from ..api.torch_types import HALVES
from ..tracing import eager_kernels
from .selections import RULES as SELECTIONS
from .selections import in_known_places

Rules = Mapping[Any, Callable[..., Any]]
_SUMS: Final = (torch.ops.aten.add.Tensor, torch.ops.aten.add.Scalar)
"""Inductor's rule is for complex numbers alone: two calls, then views as real numbers, which few layouts allow."""
_PIECE: Final = 2**19
"""Elements of a product that a processor's cache holds."""
_PIECES: Final = 8
"""The largest number of pieces: each is code of its own."""


def adapted(table: Rules) -> Rules:
    """Inductor's rules without those of operators that Inductor must see whole, and with ours."""
    whole = {*negative_indices.KEPT, *eager_kernels.KEPT_WHOLE, *_SUMS}
    ranges = {each: eager_kernels.called_of_fractions(each, table[each]) for each in eager_kernels.RANGES if each in table}
    found = {operator: rule for operator, rule in table.items() if operator not in whole} | ranges | dict(_OWN)
    return found | norms_of_constants(table) | rounded_once(found) | in_known_places(found)


def _eye(
    rows: Any,
    columns: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Any:
    """``eye`` by comparing ``int32``. torch compares ``uint16`` from 256 rows on, for which Inductor has no vectors."""
    if layout not in (None, torch.strided) or pin_memory:
        return NotImplemented
    short = all(isinstance(count, int) and count < 2**31 for count in (rows, columns))
    numbers = torch.int32 if short else torch.int64
    row, column = (torch.arange(count, dtype=numbers, device=device) for count in (rows, columns))
    return (row[:, None] == column).to(dtype or torch.get_default_dtype())


def _var(x: torch.Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    """``var`` in ``float64``, as in eager's kernel. Inductor's is off by 1e-4 for numbers near 1e5."""
    if x.dtype == torch.float64 or x.is_complex():
        return NotImplemented
    if x.dtype in HALVES:
        return moments(x, dim, correction, keepdim)[0].to(x.dtype)
    return torch.var(x.double(), dim, correction=correction, keepdim=keepdim).to(x.dtype)


def _var_mean(x: torch.Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    """``var_mean`` in ``float64``, unless a norm asks: its own rule is fast, and eager's norms use ``float32``, too."""
    if x.dtype == torch.float64 or x.is_complex() or (keepdim and correction == 0):
        return NotImplemented
    return tuple(found.to(x.dtype) for found in moments(x, dim, correction, keepdim))


def _signbit(x: torch.Tensor) -> Any:
    """``signbit`` of halves by a sign that is copied: GCC 12 has an internal error at vectors of its own ``signbit``."""
    return torch.copysign(torch.ones_like(x), x) < 0 if x.dtype in HALVES else NotImplemented


def _remainder(x: torch.Tensor, divisor: Any) -> Any:
    """``remainder`` of real numbers by ``fmod``, as in eager's kernel. Inductor subtracts a rounded product from ``x``."""
    dtype = torch.result_type(x, divisor)
    if not dtype.is_floating_point:
        return NotImplemented
    x = x.to(dtype)
    divisor = divisor.to(dtype) if isinstance(divisor, torch.Tensor) else torch.full((), divisor, dtype=dtype, device=x.device)
    rest = torch.fmod(x, divisor)
    return torch.where(rest * torch.ones_like(divisor).copysign(divisor) < 0, rest + divisor, rest)


def _lerp(start: torch.Tensor, end: torch.Tensor, weight: Any) -> Any:
    """``lerp`` with a number that is not known. torch's rule chooses a formula by its value."""
    if not isinstance(weight, torch.SymFloat):
        return decompositions[torch.ops.aten.lerp.Scalar](start, end, weight)
    return torch.lerp(start, end, torch.ops.aten.scalar_tensor.default(weight, dtype=start.dtype))


def _pow(x: torch.Tensor, exponent: Any) -> Any:
    """``x ** -0.5`` as eager computes it: -0.0 gives minus infinity, and minus infinity NaN.

    Of ``float16`` it is a power, as ``x ** 0.5`` is: -0.0 gives infinity or 0.0, and minus infinity 0.0 or infinity.
    """
    if isinstance(exponent, torch.SymFloat) or abs(exponent) != 0.5 or not x.is_floating_point():
        return NotImplemented
    if x.dtype == torch.float16:
        return torch.pow(x, torch.full((), exponent, dtype=x.dtype, device=x.device))
    return torch.rsqrt(x) if exponent < 0 else NotImplemented


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    """``index_fill``, which counts negative indices from the end. torch's rule ends in ``index_copy``, which does not."""
    size = x.shape[dim] if x.dim() else 1
    return torch._refs.index_fill(x, dim, torch.where(index < 0, index + size, index), value)


def _sgn(x: torch.Tensor) -> torch.Tensor:
    """``sgn``. Of complex numbers it is one call: torch's rule makes seven, with ``abs`` again, in the gradient of ``abs``."""
    return NotImplemented if x.is_complex() else torch.sign(x)


def _to_copy(x: torch.Tensor, *, dtype: torch.dtype | None = None, **how: Any) -> Any:
    """A cast. One from or to complex numbers is a call of ATen's kernel.

    The kernel of ``prims`` is in Python. What it returns requires gradients where ``x`` does, also under ``no_grad``.
    """
    if x.is_complex() or (dtype is not None and dtype.is_complex):
        return NotImplemented
    return decompositions[torch.ops.aten._to_copy.default](x, dtype=dtype, **how)


def _roll(x: torch.Tensor, shifts: Any, dims: Any = ()) -> torch.Tensor:
    """``roll`` with the strides of eager's, which concatenates two parts of ``x``. torch's rule makes contiguous results."""
    rolled: torch.Tensor = torch._refs.roll(x, shifts, dims)
    return rolled.contiguous(memory_format=suggest_memory_format(x)) if dims and x.numel() else rolled


def _trilinear(
    one: torch.Tensor,
    two: torch.Tensor,
    three: torch.Tensor,
    expand_one: Sequence[int],
    expand_two: Sequence[int],
    expand_three: Sequence[int],
    summed: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """``bilinear`` and its gradients as two products of matrices; eager's kernel makes one for each output feature.

    The first product may be large, so both are computed in pieces along its longest dimension.
    """
    dims = range(one.dim() + len(expand_one))
    own = [[dim for dim in dims if dim not in expanded] for expanded in (expand_one, expand_two, expand_three)]
    result = [dim for dim in dims if dim not in summed]
    pair = [dim for dim in dims if dim in (*own[0], *own[1]) and dim in (*own[2], *result)]
    sizes = {dim: size for names, x in zip(own, (one, two, three), strict=True) for dim, size in zip(names, x.shape, strict=True)}
    longest = max(pair, key=lambda dim: sizes[dim] if isinstance(sizes[dim], int) else 0, default=0)
    count = _pieces([sizes[dim] for dim in pair])
    operands = [
        x.tensor_split(count, names.index(longest)) if longest in names else [x] * count
        for names, x in zip(own, (one, two, three), strict=True)
    ]

    def product(first: torch.Tensor, second: torch.Tensor, third: torch.Tensor) -> torch.Tensor:
        return torch.einsum(torch.einsum(first, own[0], second, own[1], pair), pair, third, own[2], result)

    found = list(map(product, *operands))
    if count == 1:
        return found[0]
    return torch.cat(found, result.index(longest)) if longest in result else functools.reduce(torch.add, found)


def _pieces(sizes: Sequence[int | torch.SymInt]) -> int:
    """The number of pieces in which a product of ``sizes`` is computed, along its longest dimension; 1 if a size varies."""
    known = [size for size in sizes if isinstance(size, int)]
    return max(1, min(math.ceil(math.prod(known) / _PIECE), _PIECES, max(known, default=1))) if len(known) == len(sizes) else 1


_OWN: Rules = {
    **gradient_rules.RULES,
    **SELECTIONS,
    torch.ops.aten.eye.default: lambda rows, **how: _eye(rows, rows, **how),
    torch.ops.aten.eye.m: _eye,
    torch.ops.aten._trilinear.default: _trilinear,
    torch.ops.aten.div.Tensor_mode: divided,
    torch.ops.aten.index_fill.int_Scalar: _index_fill,
    torch.ops.aten.index_fill.int_Tensor: _index_fill,
    torch.ops.aten.lerp.Scalar: _lerp,
    torch.ops.aten.pow.Tensor_Scalar: _pow,
    torch.ops.aten.sgn.default: _sgn,
    torch.ops.aten.signbit.default: _signbit,
    torch.ops.aten._to_copy.default: _to_copy,
    torch.ops.aten.var.correction: _var,
    torch.ops.aten.var_mean.correction: _var_mean,
    torch.ops.aten.remainder.Scalar: _remainder,
    torch.ops.aten.remainder.Tensor: _remainder,
    torch.ops.aten.roll.default: _roll,
}

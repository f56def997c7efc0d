"""Rules of matrix products, convolutions, Fourier transforms and linear algebra."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from torch.fx import Node

from .table import Array, array, cast, dtype_of, rule, shape_of, wide


def _matmul(x: Array, y: Array) -> Array:
    """A product whose sums are taken in float32 for half types."""
    return jnp.matmul(x, y, preferred_element_type=wide(x.dtype))


@rule("mm bmm mv dot")
def _product(node: Node, x: Array, y: Array) -> Array:
    return cast(_matmul(x, y), dtype_of(node))


@rule("addmm baddbmm addmv")
def _add_product(node: Node, x: Array, y: Array, z: Array, beta: Any = 1, alpha: Any = 1) -> Array:
    """With ``beta`` 0, ``x`` has no effect, even if it has NaNs."""
    product = _matmul(y, z)
    product = product if alpha == 1 else product * array(alpha, product.dtype)
    if beta != 0:
        x = cast(x, product.dtype)
        product = product + (x if beta == 1 else x * array(beta, product.dtype))
    return cast(product, dtype_of(node))


@rule("_int_mm")
def _int_product(node: Node, x: Array, y: Array) -> Array:
    return jnp.matmul(x.astype(jnp.int32), y.astype(jnp.int32))


def _convolution(
    weight: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Callable[[Array, Array], Array]:
    """A convolution as a function of image and weight."""
    rank = weight.ndim - 2
    stride, padding, dilation, output_padding = (
        list(sizes) * (rank // len(sizes)) for sizes in (stride, padding, dilation, output_padding)
    )

    def convolve(x: Array, weight: Array) -> Array:
        pads = [(pad, pad) for pad in padding]
        return lax.conv_general_dilated(x, weight, stride, pads, rhs_dilation=dilation, feature_group_count=groups)

    def convolve_transposed(x: Array, weight: Array) -> Array:
        """The gradient of a convolution: with the kernel turned and the strides in the image."""
        inputs, outputs, *kernel = weight.shape
        weight = jnp.swapaxes(weight.reshape(groups, inputs // groups, outputs, *kernel), 1, 2)
        weight = jnp.flip(weight.reshape(groups * outputs, inputs // groups, *kernel), tuple(range(2, 2 + rank)))
        reach = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
        pads = [(far - pad, far - pad + more) for far, pad, more in zip(reach, padding, output_padding, strict=True)]
        return lax.conv_general_dilated(
            x, weight, [1] * rank, pads, lhs_dilation=stride, rhs_dilation=dilation, feature_group_count=groups
        )

    return convolve_transposed if transposed else convolve


@rule("convolution")
def _convolution_rule(node: Node, x: Array, weight: Array, bias: Array | None, *options: Any) -> Array:
    is_batch = x.ndim == weight.ndim
    found = _convolution(weight, *options)(x if is_batch else x[None], weight)
    if bias is not None:
        found = found + bias.reshape(-1, *[1] * (weight.ndim - 2))
    return found if is_batch else found[0]


@rule("convolution_backward")
def _convolution_backward(
    node: Node, gradient: Array, x: Array, weight: Array, bias_sizes: Sequence[int] | None, *options: Any
) -> list[Array | None]:
    *options, wanted = options  # type: ignore[assignment]
    of_image, of_weight = jax.vjp(_convolution(weight, *options), x, weight)[1](gradient)
    dims = (0, *range(2, gradient.ndim))
    of_bias = cast(jnp.sum(cast(gradient, wide(gradient.dtype)), dims), gradient.dtype) if wanted[2] else None
    return [of_image if wanted[0] else None, of_weight if wanted[1] else None, of_bias]


def _scaled(node: Node, values: Array, norm: int, many: int) -> Array:
    """The result of a transform: as it is, divided by the square root of its size, or by its size."""
    return cast(values * (1.0, 1 / math.sqrt(many), 1 / many)[norm], dtype_of(node))


@rule("_fft_c2c")
def _fft(node: Node, x: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    if not dim:
        return cast(x, dtype_of(node))
    found = jnp.fft.fftn(x, axes=dim) if forward else jnp.fft.ifftn(x, axes=dim, norm="forward")
    return _scaled(node, found, normalization, math.prod(x.shape[i] for i in dim))


@rule("_fft_r2c")
def _fft_of_reals(node: Node, x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    found = (jnp.fft.rfftn if onesided else jnp.fft.fftn)(x, axes=dim)
    return _scaled(node, found, normalization, math.prod(x.shape[i] for i in dim))


@rule("_fft_c2r")
def _fft_to_reals(node: Node, x: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    sizes = [*(x.shape[i] for i in dim[:-1]), last_dim_size]
    return _scaled(node, jnp.fft.irfftn(x, sizes, axes=dim, norm="forward"), normalization, math.prod(sizes))


@rule("linalg_solve_triangular")
def _solve_triangular(node: Node, x: Array, y: Array, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Array:
    if left:
        return solve_triangular(x, y, lower=not upper, unit_diagonal=unitriangular)
    turned = [jnp.swapaxes(value, -1, -2) for value in (x, y)]
    return jnp.swapaxes(solve_triangular(*turned, lower=upper, unit_diagonal=unitriangular), -1, -2)


@rule("linalg_qr")
def _qr(node: Node, x: Array, mode: str = "reduced") -> list[Array]:
    return list(jnp.linalg.qr(x, mode))


@rule("_linalg_eigh")
def _eigh(node: Node, x: Array, uplo: str = "L", compute_v: bool = True) -> list[Array]:
    return list(jnp.linalg.eigh(x, uplo))


@rule("_linalg_svd")
def _svd(node: Node, x: Array, full_matrices: bool = False, compute_uv: bool = True, **_: Any) -> list[Array]:
    return list(jnp.linalg.svd(x, full_matrices))


@rule("_cdist_forward")
def _distances(node: Node, x: Array, y: Array, p: float, mode: int | None = None) -> Array:
    apart = jnp.abs(x[..., :, None, :] - y[..., None, :, :])
    if math.isinf(p):
        return jnp.max(apart, -1)
    found = jnp.sum(apart != 0, -1) if p == 0 else jnp.sum(apart**p, -1) ** (1 / p)
    return cast(found, dtype_of(node)).reshape(shape_of(node))

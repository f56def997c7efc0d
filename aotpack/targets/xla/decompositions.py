"""What is decomposed for XLA: all that torch decomposes into its core operators, and what torch_xla computes otherwise.

The latter is known from running it (torch_xla 2.9.0); tests/xla holds a case for each.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ..._torch_compat import Decompositions
from ..._torch_compat.decompose import core_decompositions

aten = torch.ops.aten


@cache
def table() -> Decompositions:
    """Operator to the function that computes it from others."""
    found = core_decompositions([*_ALSO, *_RESAMPLING])
    linear = {backward: _transposed(found[forward]) for forward, backward in _RESAMPLING.items()}
    return {**found, **linear, **_OWN}


# Not in torch's core table although it has rules for them. torch_xla's own kernels keep the biased variance.
_ALSO = (
    aten._batch_norm_with_update_functional,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten.batch_norm_backward,
    aten.native_batch_norm,
    aten.native_batch_norm_backward,
)

_RESAMPLING = {
    getattr(aten, name).default: getattr(aten, f"{name}_backward").default
    for name in (
        "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
        "upsample_bicubic2d",
        "upsample_bilinear2d",
        "upsample_linear1d",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "upsample_trilinear3d",
    )
}
"""Operators that torch has rules for, to their gradients, which it has none for."""


def _transposed(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The gradient of resampling, which is linear: what its parts have for gradients, wherever they are taken."""

    def backward(gradient: torch.Tensor, output_size: list[int], input_size: list[int], *options: Any) -> torch.Tensor:
        pull = torch.func.vjp(lambda x: forward(x, output_size, *options), gradient.new_zeros(input_size))[1]
        found: torch.Tensor = pull(gradient)[0]
        return found

    return backward


def _pool(x: torch.Tensor, output_size: list[int]) -> torch.Tensor:
    """Adaptive average pooling, a side after the other: the sizes are known."""
    for dim, size in zip((-2, -1), output_size, strict=True):
        ends = [(i * x.shape[dim] // size, -(-(i + 1) * x.shape[dim] // size)) for i in range(size)]
        x = torch.stack([x.narrow(dim, start, end - start).mean(dim) for start, end in ends], dim)
    return x


def _pool_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for dim in (-2, -1):
        gradient = _spread(gradient, dim, x.shape[dim])
    return gradient


def _spread(gradient: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """The gradient of averages along ``dim``: an input has a share of each window that it is in, those from first to last."""
    count, tail = gradient.shape[dim], [1] * (-dim - 1)
    window, place = (torch.arange(n, device=gradient.device) for n in (count, size))
    lengths = ((window + 1) * size + count - 1) // count - window * size // count
    first, last = place * count // size, ((place + 1) * count + size - 1) // size - 1
    shares = gradient / lengths.view(-1, *tail)
    most = max(-(-(i + 1) * count // size) - i * count // size for i in range(size))
    parts = [shares.index_select(dim, torch.minimum(first + i, last)) for i in range(most)]
    inside = [torch.where((first + i <= last).view(-1, *tail), part, 0) for i, part in enumerate(parts)]
    return functools.reduce(torch.add, inside)


def _unfold(x: torch.Tensor, dim: int, size: int, step: int) -> torch.Tensor:
    dim = dim % x.dim()
    starts = torch.arange(0, x.shape[dim] - size + 1, step, device=x.device)
    places = starts.unsqueeze(1) + torch.arange(size, device=x.device)
    sizes = (*x.shape[:dim], *places.shape, *x.shape[dim + 1 :])
    return x.index_select(dim, places.flatten()).view(sizes).movedim(dim + 1, -1)


def _exp2(x: torch.Tensor) -> torch.Tensor:
    return torch.pow(2.0, x)


def _copysign(x: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
    size = torch.abs(x).to(torch.promote_types(torch.result_type(x, sign), torch.get_default_dtype()))
    return torch.where(torch.atan2(sign, -torch.ones_like(sign)) < 0, -size, size)  # zeros have signs too


def _fmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, torch.maximum(x, y)))


def _fmin(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, torch.minimum(x, y)))


def _addmv(x: torch.Tensor, matrix: torch.Tensor, vector: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """What is multiplied by zero does not count, not even where it is not a number."""
    product = torch.mv(matrix, vector) * alpha
    return product if beta == 0 else product + x * beta


def _copy(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """torch's own writes to ``x``, which as an input of a program cannot be written to."""
    return source.to(x.dtype).expand(x.shape).clone()


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """torch_xla divides by ``p`` in place of ``1 - p``, and its mask is no bool."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = torch.rand_like(x, dtype=torch.float32) >= p  # of float32: a half type has too few steps between 0 and 1
    return x * mask * (1 / (1 - p)), mask


def _dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return gradient * mask * scale


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and the logarithm of its normaliser, which torch's own rule does not give."""
    scores = _scores(query, key, is_causal, attn_mask, scale)
    logsumexp = torch.logsumexp(scores, -1)
    return (_weights(scores, logsumexp) @ value.to(scores.dtype)).to(query.dtype), logsumexp


def _attention_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradient from the saved normaliser (Dao et al., FlashAttention, 2022, appendix B)."""
    scores = _scores(query, key, is_causal, attn_mask, scale)
    weights, wide = _weights(scores, logsumexp), gradient.to(scores.dtype)
    inner = wide @ value.to(scores.dtype).mT - (wide * out.to(scores.dtype)).sum(-1, keepdim=True)
    of_scores = weights * inner * _scale(query, scale)
    of_query, of_key, of_value = of_scores @ key.to(scores.dtype), of_scores.mT @ query.to(scores.dtype), weights.mT @ wide
    return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype)


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(
    query: torch.Tensor, key: torch.Tensor, is_causal: bool, mask: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    """In float32 for half types, as torch's kernel accumulates."""
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = (query.to(wide) @ key.to(wide).mT) * _scale(query, scale)
    if mask is not None:
        scores = scores + mask
    if is_causal:
        above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(above, -math.inf)
    return scores


def _weights(scores: torch.Tensor, logsumexp: torch.Tensor) -> torch.Tensor:
    """Zeros in a row of which all is masked, as torch's kernel has it."""
    return torch.exp(scores - logsumexp.masked_fill(logsumexp == -math.inf, 0).unsqueeze(-1))


_OWN: dict[Any, Any] = {
    aten._adaptive_avg_pool2d.default: _pool,
    aten._adaptive_avg_pool2d_backward.default: _pool_backward,
    aten.addmv.default: _addmv,
    aten.copy.default: _copy,
    aten.copysign.Tensor: _copysign,
    aten.exp2.default: _exp2,
    aten.fmax.default: _fmax,
    aten.fmin.default: _fmin,
    aten.unfold.default: _unfold,
    aten.native_dropout.default: _dropout,
    aten.native_dropout_backward.default: _dropout_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
}

"""What is decomposed for XLA: all that torch decomposes into its core operators, and what torch_xla computes otherwise.

The latter is known from running it (torch_xla 2.9.0); tests/xla holds a case for each.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch

from ..._torch_compat import Decompositions
from ..._torch_compat.decompose import core_decompositions

aten = torch.ops.aten


@cache
def table() -> Decompositions:
    """Operator to the function that computes it from others."""
    return {**core_decompositions(_ALSO), **_OWN}


# Not in torch's core table although it has rules for them. torch_xla's own kernels keep the biased variance.
_ALSO = (
    aten._batch_norm_with_update_functional,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten.batch_norm_backward,
    aten.native_batch_norm,
    aten.native_batch_norm_backward,
)


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
    aten.native_dropout.default: _dropout,
    aten.native_dropout_backward.default: _dropout_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
}

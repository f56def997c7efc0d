"""Attention by matrix products and a softmax, for compilers without a kernel for it: torch's CPU operator, and flex attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention, and the logarithm of its normaliser, which torch's own decomposition does not
    return.
    """
    weights, logsumexp = _softmax(_scores(query, key, is_causal, attn_mask, scale))
    return (weights @ value.to(weights.dtype)).to(query.dtype), logsumexp


def attention_backward(
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
    """The gradient, from the saved logarithm of the normaliser (Dao et al., FlashAttention, 2022,
    appendix B).
    """
    scores = _scores(query, key, is_causal, attn_mask, scale)
    weights = torch.exp(scores - _finite(logsumexp).unsqueeze(-1))
    wide = gradient.to(scores.dtype)
    inner = wide @ value.to(scores.dtype).mT - (wide * out.to(scores.dtype)).sum(-1, keepdim=True)
    of_scores = weights * inner * _scale(query, scale)
    of_query, of_key, of_value = of_scores @ key.to(scores.dtype), of_scores.mT @ query.to(scores.dtype), weights.mT @ wide
    return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype)


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(
    query: torch.Tensor, key: torch.Tensor, is_causal: bool, mask: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    """The scores, in float32 for half types, because torch's kernel accumulates in float32."""
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = (query.to(wide) @ key.to(wide).mT) * _scale(query, scale)
    if mask is not None:
        scores = scores + mask
    if is_causal:
        above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(above, -math.inf)
    return scores


def _softmax(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The softmax, and the logarithm of its normaliser; zeros in a fully masked row, as in torch's
    kernel.

    The softmax is not computed from that logarithm, which is imprecise if scores are large.
    """
    most = scores.amax(-1, keepdim=True)
    parts = torch.exp(scores - _finite(most))
    total = parts.sum(-1, keepdim=True)
    return parts / torch.where(total == 0, 1, total), (most + torch.log(total)).squeeze(-1)


def _finite(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(x == -math.inf, 0)


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score: Callable[..., Any],
    block_mask: Sequence[Any],
    scale: float,
    options: object,
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute all scores at once, as eager does (spec/control-flow.md); the table of masked blocks
    is not needed.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1).expand(query.shape[0], -1, -1, -1) for x in (key, value))
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = (query @ key.mT).to(wide) * scale
    positions = [torch.arange(size, device=query.device) for size in scores.shape]
    changed = _everywhere(score, 1, len(score_buffers))(scores, *positions, *score_buffers)
    scores = torch.where(_everywhere(block_mask[-1], 0, len(mask_buffers))(*positions, *mask_buffers), changed, -math.inf)
    weights, logsumexp = _softmax(scores)
    return weights.to(query.dtype) @ value, logsumexp / math.log(2), scores.amax(-1) / math.log(2)


def _everywhere(function: Callable[..., Any], scores: int, buffers: int) -> Callable[..., torch.Tensor]:
    """Map a function of one score (if any), its four indices and buffers to a function of all
    scores and all indices.
    """

    def of_one(*values: torch.Tensor) -> torch.Tensor:
        result = function(*values)
        found: torch.Tensor = result[0] if isinstance(result, (tuple, list)) else result
        return found

    mapped = of_one
    for side in reversed(range(4)):
        dims = [0 if other == side else None for other in range(4)]
        mapped = torch.func.vmap(mapped, in_dims=(*[0] * scores, *dims, *[None] * buffers))
    return mapped

"""Decompositions for XLA of all operators that have no rule: torch's, and those that torch lacks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ..._torch.api import gradient_rules
from ..._torch.api.half_rules import rounded_once
from ..._torch.api.norms import norms_of_constants
from ..._torch.api.recurrent import lstm_layer
from ..._torch.tracing.aot_autograd import Decompositions
from ..._torch.tracing.decompose import all_decompositions
from .. import attention
from .rules import RULES

aten = torch.ops.aten


@cache
def table() -> Decompositions:
    """Maps an operator to the function that computes it from others."""
    found = {**all_decompositions(), **gradient_rules.RULES, **_OWN}
    found |= norms_of_constants(found) | rounded_once(found)
    linear = {backward: _transposed(found[forward]) for forward, backward in _RESAMPLING.items()}
    return {operator: rule for operator, rule in {**found, **linear}.items() if operator not in RULES}


@cache
def when_lowered() -> Decompositions:
    """The same for a graph that is lowered, in which nothing looks for an operator any more."""
    return {**table(), **WHEN_LOWERED}


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
"""Maps operators with decompositions in torch to their gradients, which have none."""


def _transposed(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The gradient of resampling.

    Resampling is linear, so its gradient can be taken at any input.
    """

    def backward(gradient: torch.Tensor, output_size: list[int], input_size: list[int], *options: Any) -> torch.Tensor:
        pull = torch.func.vjp(lambda x: forward(x, output_size, *options), gradient.new_zeros(input_size))[1]
        found: torch.Tensor = pull(gradient)[0]
        return found

    return backward


def _as_strided(x: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None = None) -> Any:
    """``as_strided`` of a tensor without gaps; the rule does the rest, with an index for each element in the program."""
    if not _has_no_gaps(x):
        return NotImplemented
    elements = x.permute(_in_memory(x)).reshape(-1)
    return elements.index_select(0, _flat_indices(x, size, stride, storage_offset)).view(size)


def _as_strided_scatter(
    x: torch.Tensor, source: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Any:
    if not _has_no_gaps(x):
        return NotImplemented
    order = _in_memory(x)
    turned = x.permute(order)
    found = turned.reshape(-1).scatter(0, _flat_indices(x, size, stride, storage_offset), source.reshape(-1))
    return found.view(turned.shape).permute([order.index(dim) for dim in range(x.dim())])


def _has_no_gaps(x: torch.Tensor) -> bool:
    """Whether a tensor's elements are all of its storage up to there, each once, in any order of its dimensions."""
    length = 1
    for dim in reversed(_in_memory(x)):
        if x.shape[dim] != 1 and x.stride(dim) != length:
            return False
        length *= x.shape[dim]
    return x.storage_offset() == 0


def _in_memory(x: torch.Tensor) -> list[int]:
    """The dimensions in the order in which memory has them, the last of them without steps."""
    return sorted(range(x.dim()), key=lambda dim: (x.stride(dim), x.shape[dim]), reverse=True)


def _flat_indices(x: torch.Tensor, size: list[int], stride: list[int], offset: int | None) -> torch.Tensor:
    indices = torch.full((), offset or 0, device=x.device)
    for dim, (many, step) in enumerate(zip(size, stride, strict=True)):
        indices = indices + (torch.arange(many, device=x.device) * step).view(-1, *[1] * (len(size) - dim - 1))
    return indices.reshape(-1)


def _weight_norm_backward(
    gradient: torch.Tensor, direction: torch.Tensor, length: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of both parts of a normalised weight, for which torch has no decomposition."""
    others = [i for i in range(direction.dim()) if i != dim]
    product = (gradient * direction).sum(others, keepdim=True)
    return length / norms * (gradient - direction * (product / (norms * norms))), product / norms


def _rrelu(
    x: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A leaky relu with a random slope for each element; returns the result and the slopes."""
    if not training:
        return torch.where(x > 0, x, x * ((lower + upper) / 2)), noise.clone()
    factor = torch.where(x > 0, 1, torch.rand_like(x, dtype=torch.float32) * (upper - lower) + lower).to(x.dtype)
    return x * factor, factor


def _unfold(x: torch.Tensor, dim: int, size: int, step: int) -> torch.Tensor:
    dim = dim % x.dim()
    starts = torch.arange(0, x.shape[dim] - size + 1, step, device=x.device)
    indices = starts.unsqueeze(1) + torch.arange(size, device=x.device)
    sizes = (*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :])
    return x.index_select(dim, indices.flatten()).view(sizes).movedim(dim + 1, -1)


def _copy(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Replaces torch's own decomposition, which writes to ``x``; an input of a program cannot be
    written to. The strides are in the order of those of ``x``: views of the copy are undone by it.
    """
    values = source.to(x.dtype).expand(x.shape)
    if x.is_contiguous():
        return values.clone(memory_format=torch.contiguous_format)
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    inverse = sorted(range(x.dim()), key=order.__getitem__)
    return values.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse)


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout, and its mask."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = torch.rand_like(x, dtype=torch.float32) >= p  # float32, because a half type has too few values between 0 and 1
    return x * mask * (1 / (1 - p)), mask


def _dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return gradient * mask * scale


def _lstm_layer(
    x: torch.Tensor,
    of_input: torch.Tensor,
    of_hidden: torch.Tensor,
    bias: torch.Tensor,
    own_bias: torch.Tensor,
    hidden: torch.Tensor,
    memory: torch.Tensor,
    reverse: bool,
    batch_sizes: list[int],
    *_: Any,
) -> tuple[torch.Tensor, ...]:
    """oneDNN's layer as torch's rules call it: one direction, time steps first.

    Its last result is only for a backward.
    """
    params = [of_input, of_hidden, bias, own_bias]
    rows, *last = lstm_layer(x, [hidden.squeeze(0), memory.squeeze(0)], params, reverse=reverse)
    return rows, *(state.unsqueeze(0) for state in last), torch.empty(0, dtype=torch.uint8, device=x.device)


WHEN_LOWERED: Decompositions = {
    torch.ops.higher_order.flex_attention: attention.flex_attention,
    aten.mkldnn_rnn_layer.default: _lstm_layer,
    aten.as_strided.default: _as_strided,
    aten.as_strided_scatter.default: _as_strided_scatter,
    aten.unfold.default: _unfold,
}
"""Decompositions for lowering only: in the trace, others look for these operators.

Subgraphs are functions here.
"""

_OWN: dict[Any, Any] = {
    aten.copy.default: _copy,
    aten.rrelu_with_noise_functional.default: _rrelu,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    aten.native_dropout.default: _dropout,
    aten.native_dropout_backward.default: _dropout_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention.attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention.attention_backward,
}

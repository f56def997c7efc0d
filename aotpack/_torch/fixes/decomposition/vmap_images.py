"""Rules of ``vmap`` for operators on images and attention: the batch becomes more images.

Torch's own rules do the same with plain integers, so a batch that varies becomes that of the example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def _more_images(operator: Callable[..., Any], rank: int) -> Callable[..., Any]:
    """``operator`` takes ``[images, channels, …]`` with ``rank`` further dimensions, or one image without the first."""

    def rule(shared: object, x: Tensor, *rest: Any) -> Any:
        if x.dim() < rank + 3:
            return operator(x, *rest)
        images = x.shape[:2]
        found = operator(*(value.flatten(0, 1) if isinstance(value, Tensor) else value for value in (x, *rest)))
        return found.unflatten(0, images) if isinstance(found, Tensor) else tuple(each.unflatten(0, images) for each in found)

    return rule


def _batch_norm(
    shared: object, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, *how: Any
) -> tuple[Tensor, ...]:
    """Each call of ``vmap`` normalises channels of its own."""
    batch, _, channels = x.shape[:3]
    own = (None if value is None else value.reshape(-1) for value in (weight, bias, mean, var))
    rows, *kept = _aten.native_batch_norm(x.transpose(0, 1).flatten(1, 2), *own, *how)
    rows = rows.unflatten(1, (batch, channels)).transpose(0, 1)
    return rows, *(value.reshape(batch, channels if how[0] else 0) for value in kept)


def _attention(shared: object, query: Tensor, key: Tensor, value: Tensor, *how: Any, **more: Any) -> tuple[Tensor, Tensor]:
    images = query.shape[:2]
    flat = (each.flatten(0, 1) for each in (query, key, value))
    found = _aten._scaled_dot_product_flash_attention_for_cpu(*flat, *how, **more)
    return found[0].unflatten(0, images), found[1].unflatten(0, images)


IMAGES: dict[Any, Callable[..., Any]] = {
    **{
        operator: _more_images(operator, rank)
        for rank, operators in {
            1: (_aten.reflection_pad1d, _aten.replication_pad1d, _aten.upsample_linear1d, _aten.upsample_nearest1d, _aten.col2im),
            2: (
                *(_aten.avg_pool2d, _aten._adaptive_avg_pool2d, _aten.adaptive_max_pool2d, _aten.max_pool2d_with_indices),
                *(_aten.reflection_pad2d, _aten.replication_pad2d, _aten.grid_sampler_2d, _aten.im2col),
                *(_aten.upsample_bilinear2d, _aten.upsample_bicubic2d),
                *(_aten.upsample_nearest2d, _aten._upsample_nearest_exact2d),
            ),
            3: (
                *(_aten.avg_pool3d, _aten._adaptive_avg_pool3d, _aten.adaptive_max_pool3d, _aten.max_pool3d_with_indices),
                *(_aten.reflection_pad3d, _aten.replication_pad3d, _aten.grid_sampler_3d),
                *(_aten.upsample_trilinear3d, _aten.upsample_nearest3d),
            ),
        }.items()
        for operator in (packet.default for packet in operators)
    },
    _aten.pixel_shuffle.default: lambda shared, x, factor: _aten.pixel_shuffle(x, factor),
    _aten.pixel_unshuffle.default: lambda shared, x, factor: _aten.pixel_unshuffle(x, factor),
    _aten.native_batch_norm.default: _batch_norm,
    _aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
}

"""Traces ``nn.TransformerEncoder`` with a padding mask as eager computes it in inference: padded positions are zero.

Eager takes the padding out of the batch, if it is at the end of every row, and fills in zeros after the last layer. No
compiler follows that. Here all positions are computed, and the same ones are made zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import TransformerEncoder
from torch.nn.functional import _canonical_mask

from .patching import hooked

_eager: Callable[..., Tensor] = TransformerEncoder.forward


@contextlib.contextmanager
def padding_made_zero() -> Iterator[None]:
    """Let encoders return zeros, or the norm of zeros, where eager's inference does."""
    with hooked("encoder-padding", TransformerEncoder, "forward", _forward):
        yield


def _forward(
    self: TransformerEncoder,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    if src_key_padding_mask is None or mask is not None or is_causal or not _takes_padding_out(self, src):
        return _eager(self, src, mask, src_key_padding_mask, is_causal)
    added: Any = _canonical_mask(src_key_padding_mask, "src_key_padding_mask", None, "mask", src.dtype)
    output, padded = src, added != 0
    for layer in self.layers:
        output = layer(output, src_key_padding_mask=added)
    is_last = (padded[:, 1:] | ~padded[:, :-1]).all()
    output = torch.where((padded & is_last).unsqueeze(-1), 0.0, output)
    return output if self.norm is None else self.norm(output)


def _takes_padding_out(encoder: TransformerEncoder, src: Tensor) -> bool:
    """Whether eager does so for a mask whose padding is last, which ``mask_check`` says to ask."""
    layer: Any = encoder.layers[0]
    if not torch.backends.mha.get_fastpath_enabled() or not getattr(encoder, "use_nested_tensor", False):
        return False
    if not getattr(encoder, "mask_check", True) or layer.training or src.dim() != 3 or torch.is_autocast_enabled():
        return False
    parts = (layer.self_attn, layer.self_attn.out_proj, layer.norm1, layer.norm2, layer.linear1, layer.linear2)
    return not torch.is_grad_enabled() or not any(x.requires_grad for x in (src, *_weights(parts)))


def _weights(modules: tuple[Any, ...]) -> list[Tensor]:
    """The modules' own weights that are there."""
    names = ("in_proj_weight", "in_proj_bias", "weight", "bias")
    return [x for module in modules for name in names if (x := getattr(module, name, None)) is not None]

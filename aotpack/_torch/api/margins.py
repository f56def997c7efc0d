"""Gradients of losses by margins, as eager's kernels compute them."""

from __future__ import annotations

import torch
from torch._decomp.decompositions import pw_cast_for_opmath


@pw_cast_for_opmath
def soft_margin_loss_backward(gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    """The gradient of ``soft_margin_loss`` by eager's formula, which is NaN where the exponential is infinite."""
    power = torch.exp(-target * x)
    slope = -target * power / (power + 1) * gradient
    return slope / x.numel() if reduction == 1 else slope

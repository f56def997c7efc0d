"""Gradients by the formulas of eager's kernels, where torch's rules differ: at NaN and infinity, and at weights of them.

What is compiled, by Inductor or XLA, follows them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._decomp import decomposition_table
from torch._decomp.decompositions import pw_cast_for_opmath

_aten = torch.ops.aten


@pw_cast_for_opmath
def _elu_backward(
    gradient: torch.Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: torch.Tensor
) -> torch.Tensor:
    """The gradient of ``elu`` as eager's vectors compute it: it is NaN where ``x`` is. torch's rule hides that."""
    slope = alpha * scale
    below = (x + slope) if is_result else torch.exp(x * input_scale) * slope
    return gradient * torch.where(x > 0, scale, below * input_scale)


def _within(gradient: torch.Tensor, x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """The gradient of ``hardtanh``, which is zero where ``x`` is NaN, as in eager's vectors."""
    return torch.where((x > low) & (x < high), gradient, 0)


def _outside(gradient: torch.Tensor, x: torch.Tensor, bound: float) -> torch.Tensor:
    """The gradient of ``hardshrink`` and ``softshrink``, which is zero where ``x`` is NaN, as in eager's vectors."""
    return torch.where((x < -bound) | (x > bound), gradient, 0)


@pw_cast_for_opmath
def _hardswish_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient of ``hardswish``, which is NaN where ``x`` is."""
    return gradient * torch.where(x <= -3, 0, torch.where(x >= 3, 1, x / 3 + 0.5))


@pw_cast_for_opmath
def _smooth_l1_loss_backward(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """The gradient of ``smooth_l1_loss``, which is NaN where the difference is. torch's rule makes it zero."""
    difference = x - target
    norm = gradient / difference.numel() if reduction == 1 else gradient
    slope = torch.where(difference.abs() >= beta, torch.sign(difference), difference / beta if beta else difference)
    return norm * slope


def _nll_loss_backward(
    torchs: Callable[..., torch.Tensor],
    gradient: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> Any:
    """The gradient of ``nll_loss`` with weights, zero beside the labels. torch's rule multiplies a weight of NaN by that zero.

    Without weights torch's rule is right. Its products are those whose sums over rows are left out.
    """
    if weight is None:
        return torchs(gradient, x, target, weight, reduction, ignore_index, total_weight)
    of_classes = 0 if x.dim() < 2 else 1
    labels = (target[0] if x.dim() == 1 and target.dim() else target).unsqueeze(of_classes)
    counts = labels != ignore_index
    slope = -gradient / total_weight if reduction == 1 else -gradient
    slope = slope.unsqueeze(of_classes) if 0 < slope.dim() < x.dim() else slope
    slope = slope * weight.view([x.shape[dim] if dim == of_classes else 1 for dim in range(x.dim())])
    hits = torch.zeros_like(x).scatter(of_classes, torch.where(counts, labels, 0), 1.0)
    return hits * torch.where((hits != 0) & counts, slope, 0)


@pw_cast_for_opmath
def soft_margin_loss_backward(gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    """The gradient of ``soft_margin_loss`` by eager's formula, which is NaN where the exponential is infinite."""
    power = torch.exp(-target * x)
    slope = -target * power / (power + 1) * gradient
    return slope / x.numel() if reduction == 1 else slope


RULES: Final[dict[Any, Callable[..., Any]]] = {
    _aten.elu_backward.default: _elu_backward,
    _aten.hardtanh_backward.default: _within,
    _aten.hardshrink_backward.default: _outside,
    _aten.softshrink_backward.default: _outside,
    _aten.hardswish_backward.default: _hardswish_backward,
    _aten.smooth_l1_loss_backward.default: _smooth_l1_loss_backward,
    _aten.soft_margin_loss_backward.default: soft_margin_loss_backward,
    **{
        each: functools.partial(_nll_loss_backward, decomposition_table[each])
        for each in (_aten.nll_loss_backward.default, _aten.nll_loss2d_backward.default)
    },
}

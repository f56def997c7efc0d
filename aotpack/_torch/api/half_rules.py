"""Rules for operators of half precision that eager's kernels compute in ``float32`` and round once.

A number among their arguments keeps its digits there. torch's rules round ``lambd`` of ``softshrink`` first, so a gradient
is lost where ``x`` is beside it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from .gradient_rules import soft_margin_loss_backward
from .torch_types import HALVES

_aten = torch.ops.aten
_OPERATORS: Final = (
    *(_aten.addcdiv.default, _aten.addcmul.default, _aten.hardtanh_backward.default, _aten.lerp.Scalar, _aten.lerp.Tensor),
    *(_aten.round.decimals, _aten.softshrink.default),
)
_LOSSES: Final = (_aten.huber_loss.default, _aten.mse_loss.default, _aten.smooth_l1_loss.default, _aten.soft_margin_loss.default)


def rounded_once(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Rules for these operators, and for losses. Those of ``table`` are for other types."""
    found = {operator: _in_float32(operator, table.get(operator)) for operator in _OPERATORS}
    found |= {operator: _of_halves(rule, table.get(operator)) for operator, rule in _STEPS.items()}
    return found | {operator: _reduced(operator, found.get(operator, table.get(operator))) for operator in _LOSSES}


def _in_float32(operator: Any, rule: Callable[..., Any] | None) -> Callable[..., Any]:
    def computed(*args: Any, **given: Any) -> Any:
        kinds = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
        if len(kinds) == 1 and kinds.issubset(HALVES):
            wide = [arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args]
            return operator(*wide, **given).to(kinds.pop())
        return NotImplemented if rule is None else rule(*args, **given)

    return computed


def _of_halves(rule: Callable[..., Any], other: Callable[..., Any] | None) -> Callable[..., Any]:
    """``rule`` where all tensors have one half type, else ``other``."""

    def computed(*args: Any, **given: Any) -> Any:
        kinds = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
        if len(kinds) == 1 and kinds.issubset(HALVES):
            return rule(*args, **given)
        return NotImplemented if other is None else other(*args, **given)

    return computed


def _logit(x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    if eps is not None:
        low, high = _bounds(x, eps)
        x = torch.minimum(torch.maximum(x, low), high)
    return (x / (1 - x)).log()


def _logit_backward(gradient: torch.Tensor, x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    low, high = _bounds(x, 0.0 if eps is None else eps)
    return torch.where((x >= low) & (x <= high), gradient / (x * (1 - x)), math.nan if eps is None else 0.0)


def _bounds(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``logit`` clamps to. In half precision ``1 - eps`` may be 1."""
    low = x.new_full((), eps)
    return low, 1 - low


def _mse_loss(x: torch.Tensor, target: torch.Tensor, reduction: int) -> torch.Tensor:
    difference = x - target
    return difference * difference


def _mse_loss_backward(gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int) -> torch.Tensor:
    return x.new_full((), 2 / x.numel() if reduction == 1 else 2) * (x - target) * gradient


def _binary_cross_entropy(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    losses = (target - 1) * (-x).log1p().clamp_min(-100) - target * x.log().clamp_min(-100)
    losses = losses if weight is None else losses * weight
    return losses if not reduction else losses.mean() if reduction == 1 else losses.sum()


def _binary_cross_entropy_backward(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    slope = gradient * (x - target) / torch.maximum((1 - x) * x, x.new_full((), 1e-12))  # in float16 that bound is 0
    slope = slope if weight is None else slope * weight
    return slope / x.numel() if reduction == 1 else slope


def _soft_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int) -> torch.Tensor:
    return (-target * x).exp().log1p()


_STEPS: Final[Mapping[Any, Callable[..., torch.Tensor]]] = {
    _aten.binary_cross_entropy.default: _binary_cross_entropy,
    _aten.binary_cross_entropy_backward.default: _binary_cross_entropy_backward,
    _aten.logit.default: _logit,
    _aten.logit_backward.default: _logit_backward,
    _aten.mse_loss.default: _mse_loss,
    _aten.mse_loss_backward.default: _mse_loss_backward,
    _aten.soft_margin_loss.default: _soft_margin_loss,
    _aten.soft_margin_loss_backward.default: inspect.unwrap(soft_margin_loss_backward),
}
"""Operators whose kernels round each step to half precision, so that one of them may overflow."""


def _reduced(operator: Any, rule: Callable[..., Any] | None) -> Callable[..., Any]:
    """A loss of halves whose elements are rounded before their mean or sum: one of them may overflow."""

    def computed(x: torch.Tensor, target: torch.Tensor, reduction: int = 1, *rest: Any, **given: Any) -> Any:
        if reduction and torch.result_type(x, target) in HALVES:
            losses = operator(x, target, 0, *rest, **given)
            return losses.mean() if reduction == 1 else losses.sum()
        return NotImplemented if rule is None else rule(x, target, reduction, *rest, **given)

    return computed


def divided(x: torch.Tensor, divisor: Any, *, rounding_mode: str | None) -> Any:
    """``div`` of halves, which eager rounds to a whole number in ``float32`` if it divides by one number.

    Other quotients are rounded to half precision first.
    """
    dtype = torch.result_type(x, divisor)
    if rounding_mode is None or dtype not in HALVES:
        return NotImplemented
    if not isinstance(divisor, torch.Tensor):
        return torch.div(x.float(), divisor, rounding_mode=rounding_mode).to(dtype)
    if divisor.dim() == 0:
        return torch.div(x.float(), divisor.float(), rounding_mode=rounding_mode).to(dtype)
    return torch.trunc(torch.div(x, divisor)) if rounding_mode == "trunc" else NotImplemented

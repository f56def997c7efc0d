"""Rules for operators of half precision that eager's kernels compute in ``float32`` and round once.

A number among their arguments keeps its digits there. torch's rules round ``lambd`` of ``softshrink`` first, so a gradient
is lost where ``x`` is beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from ..api.torch_types import HALVES

_aten = torch.ops.aten
_OPERATORS: Final = (
    *(_aten.addcdiv.default, _aten.addcmul.default, _aten.hardtanh_backward.default, _aten.lerp.Scalar, _aten.lerp.Tensor),
    *(_aten.round.decimals, _aten.softshrink.default),
)
_LOSSES: Final = (_aten.huber_loss.default, _aten.mse_loss.default, _aten.smooth_l1_loss.default, _aten.soft_margin_loss.default)


def rounded_once(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Rules for these operators, and for losses. Those of ``table`` are for other types."""
    found = {operator: _in_float32(operator, table.get(operator)) for operator in _OPERATORS}
    return found | {operator: _reduced(operator, table.get(operator)) for operator in _LOSSES}


def _in_float32(operator: Any, rule: Callable[..., Any] | None) -> Callable[..., Any]:
    def computed(*args: Any, **given: Any) -> Any:
        kinds = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
        if len(kinds) == 1 and kinds.issubset(HALVES):
            wide = [arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args]
            return operator(*wide, **given).to(kinds.pop())
        return NotImplemented if rule is None else rule(*args, **given)

    return computed


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

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


def rounded_once(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Rules for these operators. Those of ``table`` are for other types."""
    return {operator: _in_float32(operator, table.get(operator)) for operator in _OPERATORS}


def _in_float32(operator: Any, rule: Callable[..., Any] | None) -> Callable[..., Any]:
    def computed(*args: Any, **given: Any) -> Any:
        kinds = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
        if len(kinds) == 1 and kinds.issubset(HALVES):
            wide = [arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args]
            return operator(*wide, **given).to(kinds.pop())
        return NotImplemented if rule is None else rule(*args, **given)

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

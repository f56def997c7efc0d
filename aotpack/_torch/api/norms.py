"""Batch norms with an ``eps`` of 0, as eager's kernels compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

_NORMS: Final = tuple(
    getattr(torch.ops.aten, name)
    for name in (
        *("native_batch_norm", "_native_batch_norm_legit"),
        *("_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training"),
    )
)


def norms_of_constants(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The rules of ``table`` for batch norms, for channels that do not vary, too."""
    return {
        operator: _of_constants(rule) for operator, rule in table.items() if getattr(operator, "overloadpacket", None) in _NORMS
    }


def _of_constants(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for batch norms with an ``eps`` of 0. Eager's kernels make channels that do not vary 0 (``instance_norm``).

    In inference they multiply before they subtract the mean, so a variance of 0 gives NaN where both are infinite.
    """

    def decomposed(x: torch.Tensor, weight: Any, bias: Any, *rest: Any, **given: Any) -> Any:
        found = rule(x, weight, bias, *rest, **given)
        if found is NotImplemented or not rest or rest[-1] != 0:
            return found
        result, mean, scale, *more = found
        shape = [1, -1, *([1] * (x.dim() - 2))]
        if 0 in scale.shape:
            wide = torch.promote_types(x.dtype, torch.float32)
            factor = rest[1].to(wide).sqrt().reciprocal() * (1 if weight is None else weight.to(wide))
            start = (0 if bias is None else bias.to(wide)) - rest[0].to(wide) * factor
            return (x.to(wide) * factor.view(shape) + start.view(shape)).to(x.dtype), mean, scale, *more
        constant = scale.isinf()
        flat = 0 if bias is None else bias.to(result.dtype).view(shape)
        return torch.where(constant.view(shape), flat, result), mean, torch.where(constant, 0, scale), *more

    return decomposed

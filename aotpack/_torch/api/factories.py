"""Traces ``torch.linspace`` of a number of steps that varies. torch's operator makes that number constant."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import has_static_value
from torch.overrides import TorchFunctionMode


class VaryingFactories(TorchFunctionMode):
    """While active, computes ``torch.linspace`` of floating-point numbers as eager's kernel does, if the number of steps varies.

    The kernel starts anew for each vector, so a number may be one rounding off.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.linspace and _varies(*args, **(kwargs or {})):
            return _linspace(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _varies(start: Any, end: Any, steps: Any, *, out: Any = None, dtype: Any = None, **options: Any) -> bool:
    plain = isinstance(start, (int, float)) and isinstance(end, (int, float)) and out is None
    return plain and (dtype or torch.get_default_dtype()) in (torch.float32, torch.float64) and not has_static_value(steps)


def _linspace(
    start: float,
    end: float,
    steps: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> torch.Tensor:
    options = {"dtype": dtype or torch.get_default_dtype(), "device": device}
    index = torch.arange(steps, device=device)
    step = torch.full((), end - start, **options) / torch.sym_max(steps - 1, 1)
    rising, falling = start + step * index, end - step * (steps - 1 - index)
    made = torch.where(index < torch.sym_max(steps // 2, 1), rising, falling)
    return made.requires_grad_() if requires_grad else made

"""Traces functions of torch that make sizes which vary constant: ``linspace``, tensors of sizes, ``pad_sequence``."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import has_static_value
from torch.overrides import TorchFunctionMode

_padded: Any = torch._C._nn.pad_sequence


class VaryingFactories(TorchFunctionMode):
    """While active, computes by other operators what such a function makes of sizes that vary.

    ``linspace`` is computed for floating-point numbers, as eager's kernel does. The kernel starts anew for each
    vector, so a number may be one rounding off.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if function is torch.linspace and _varies(*args, **named):
            return _linspace(*args, **named)
        if function in (torch.tensor, torch.as_tensor) and _are_sizes(*args):
            numbers = torch.stack([torch.scalar_tensor(size, dtype=torch.int64) for size in args[0]])
            return numbers.to(device=named.get("device"), dtype=named.get("dtype"))
        if function is _padded and not has_static_value(sum(sequence.shape[0] for sequence in args[0])):
            return _pad_sequence(*args, **named)
        return function(*args, **named)


def _are_sizes(values: Any = None, *rest: Any) -> bool:
    """Whether ``torch.tensor`` is given a list of whole numbers of which one varies."""
    if rest or not isinstance(values, (list, tuple)) or not all(isinstance(each, (int, torch.SymInt)) for each in values):
        return False
    return any(isinstance(each, torch.SymInt) for each in values)


def _pad_sequence(
    sequences: list[torch.Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> torch.Tensor:
    longest: Any = 0
    for sequence in sequences:
        longest = torch.sym_max(longest, sequence.shape[0])
    rows = []
    for sequence in sequences:
        missing = longest - sequence.shape[0]
        sides = (0, missing) if padding_side == "right" else (missing, 0)
        rows.append(torch.nn.functional.pad(sequence, (0, 0) * (sequence.dim() - 1) + sides, value=padding_value))
    return torch.stack(rows, 0 if batch_first else 1)


def _varies(start: Any, end: Any, steps: Any, *, out: Any = None, dtype: Any = None, **options: Any) -> bool:
    plain = all(isinstance(number, (int, float, torch.SymInt, torch.SymFloat)) for number in (start, end))
    return (
        plain
        and out is None
        and (dtype or torch.get_default_dtype()) in (torch.float32, torch.float64)
        and not has_static_value(steps)
    )


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

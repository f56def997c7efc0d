"""Traces ``fill_diagonal_`` of views, which torch computes by ``as_strided``."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class DiagonalFills(TorchFunctionMode):
    """While active, ``fill_diagonal_`` writes to ``diagonal()``: functionalization has no ``as_strided`` of a view.

    A diagonal that wraps in a tall matrix is left as it is.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.Tensor.fill_diagonal_:
            return function(*args, **(kwargs or {}))
        return _fill(*args, **(kwargs or {}))


def _fill(x: torch.Tensor, fill_value: float, wrap: bool = False) -> torch.Tensor:
    if wrap or x.dim() < 2 or (x.dim() > 2 and any(size != x.shape[0] for size in x.shape)):  # the last two raise errors
        return x.fill_diagonal_(fill_value, wrap)
    diagonal = x
    while diagonal.dim() > 1:
        diagonal = diagonal.diagonal(0, 0, 1)
    diagonal.fill_(fill_value)
    return x

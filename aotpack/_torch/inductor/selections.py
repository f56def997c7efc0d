"""Rules for positions that depend on data.

Inductor's own rule for ``select`` adds such a position to an address and does not compare it with the size: it reads, and in
the backward writes, memory of others. Here it is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

_aten = torch.ops.aten


def select(x: torch.Tensor, dim: int, index: Any) -> Any:
    if free_unbacked_symbols(index):
        _check(_tensor(index), x.shape[dim], "select")
    return NotImplemented


def select_scatter(x: torch.Tensor, part: torch.Tensor, dim: int, index: Any) -> Any:
    if not free_unbacked_symbols(index):
        return NotImplemented
    size, at = x.shape[dim], _tensor(index)
    _check(at, size, "select_scatter")
    places = torch.arange(size).view(-1, *[1] * (x.dim() - dim % x.dim() - 1))
    return torch.where(places == torch.where(at < 0, at + size, at), part.unsqueeze(dim), x)


def _check(at: torch.Tensor, size: Any, name: str) -> None:
    _aten._assert_async.msg((at >= -size) & (at < size), f"{name}(): index out of range")


def _tensor(index: Any) -> torch.Tensor:
    tensor: torch.Tensor = _aten.scalar_tensor.default(index, dtype=torch.int64)
    return tensor


RULES: dict[Any, Callable[..., Any]] = {_aten.select.int: select, _aten.select_scatter.default: select_scatter}

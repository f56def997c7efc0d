"""Rules for positions that depend on data.

Inductor's own rule for ``select`` adds such a position to an address and does not compare it with the size: it reads, and in
the backward writes, memory of others. Here it is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from aotpack_loader.errors import UnsupportedError

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


def slice_scatter(x: torch.Tensor, part: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    length, size = part.shape[dim], x.shape[dim]
    depends = any(bound is not None and free_unbacked_symbols(bound) for bound in (start, end))
    if not depends or step != 1:
        return NotImplemented
    first, last = (_bound(bound, size) for bound in (0 if start is None else start, size if end is None else end))
    _aten._assert_async.msg((last - first).clamp(min=0) == length, "expected src to have a size equal to the slice of self")
    places = torch.arange(size) - first
    found = torch.cat([part, x.narrow(dim, 0, 1)], dim).index_select(dim, places.clamp(0, length))  # a part may be empty
    inside = (places >= 0) & (places < length)
    return torch.where(inside.view(-1, *[1] * (x.dim() - dim % x.dim() - 1)), found, x)


def in_known_places(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Rules that refuse ``as_strided`` of numbers that depend on data: nothing compares them with the size of the memory."""

    def refusing(operator: Any) -> Callable[..., Any]:
        rule = table.get(operator)

        def decomposed(*args: Any, **kwargs: Any) -> Any:
            if any(free_unbacked_symbols(value) for value in tree_leaves((args, kwargs)) if isinstance(value, torch.SymInt)):
                raise UnsupportedError(
                    f"The model calls {operator} with a number that depends on data. Native code cannot check it: index the"
                    ' tensor, or build with targets=("portable",).'
                )
            return NotImplemented if rule is None else rule(*args, **kwargs)

        return decomposed

    return {operator: refusing(operator) for operator in (_aten.as_strided.default, _aten.as_strided_scatter.default)}


def _bound(bound: Any, size: Any) -> torch.Tensor:
    """Where a slice begins or ends: counted from the end if it is negative, and never outside."""
    at = _tensor(bound)
    return torch.where(at < 0, at + size, at).clamp(0, size)


def _check(at: torch.Tensor, size: Any, name: str) -> None:
    _aten._assert_async.msg((at >= -size) & (at < size), f"{name}(): index out of range")


def _tensor(index: Any) -> torch.Tensor:
    tensor: torch.Tensor = _aten.scalar_tensor.default(index, dtype=torch.int64)
    return tensor


RULES: dict[Any, Callable[..., Any]] = {
    _aten.select.int: select,
    _aten.select_scatter.default: select_scatter,
    _aten.slice_scatter.default: slice_scatter,
}

"""Indices that are numbers in tensors: ``x[i]`` and ``x[i, :] = value`` where ``i`` is an integer tensor without dimensions.

Eager reads the number and selects. So does a trace, with a symbol for the number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, sym_and, sym_or
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_NO_NUMBERS = (torch.bool, torch.uint8)
"""Types of masks: a tensor of them without dimensions is no position."""
_NARROWS = (torch.narrow, torch.Tensor.narrow)
"""They become slices, which may end anywhere."""


class ScalarIndices(TorchFunctionMode):
    """While active, selects by such tensors."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.__getitem__ and _has_number(args[1]):
            x, rest = _selected(*args)
            return x[rest] if rest else x
        if function is torch.Tensor.__setitem__ and _has_number(args[1]):
            x, rest = _selected(*args[:2])
            x[rest or ...] = args[2]
            return None
        if function in _NARROWS:
            args, kwargs = tree_map(_number, (args, kwargs or {}))
            _check_narrow(*args, **kwargs)
        return function(*args, **(kwargs or {}))


def _check_narrow(input: torch.Tensor, dim: int, start: Any, length: Any) -> None:
    """Have the graph check what eager does, where the start depends on data."""
    if isinstance(start, torch.SymInt) and free_unbacked_symbols(start):
        fits = sym_or(
            sym_and(start >= 0, start + length <= input.shape[dim]),
            sym_and(start < 0, start >= -input.shape[dim], start + length <= 0),
        )
        torch.ops.aten._assert_scalar.default(fits, "narrow(): start and length exceed the size of the dimension")


def _has_number(index: Any) -> bool:
    return any(map(_is_number, index)) if isinstance(index, tuple) else _is_number(index)


def _is_number(index: Any) -> bool:
    if isinstance(index, torch.SymInt):
        return bool(free_unbacked_symbols(index))
    if not isinstance(index, torch.Tensor) or index.dim() or index.dtype in _NO_NUMBERS:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(index):  # ``vmap`` has a rule
        return False
    return not (index.is_floating_point() or index.is_complex())


def _number(index: Any) -> Any:
    return index.item() if isinstance(index, torch.Tensor) and _is_number(index) else index


def _selected(x: torch.Tensor, index: Any) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """``x`` at the numbers of ``index``, and the rest of ``index``, which is for the other dimensions."""
    rest = []
    items: Sequence[Any] = index if isinstance(index, tuple) else (index,)
    dim = 0
    for position, each in enumerate(items):
        if _is_number(each):
            x = x.select(dim, _number(each))
            continue
        rest.append(each)
        if each is Ellipsis:
            dim = x.dim() - sum(map(_width, items[position + 1 :]))
        else:
            dim += _width(each)
    return x, tuple(rest)


def _width(index: Any) -> int:
    """How many dimensions an index is for."""
    if index is None or isinstance(index, bool):
        return 0
    if isinstance(index, torch.Tensor) and index.dtype in _NO_NUMBERS:
        return index.dim()
    return 1

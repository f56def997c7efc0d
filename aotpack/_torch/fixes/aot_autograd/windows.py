"""Handles writes to ``unfold`` windows that leave elements out (``x.unfold(0, 2, 3)``).

After such a write, functionalization computes the whole tensor by the gradient of ``unfold``
(``unfold_inverse`` in ``FunctionalInverses.cpp``). That gradient is zero outside of windows, so the
elements between windows were lost, also under ``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from ...api.writes import written
from ..applying import count_call
from .overlaps import memory_of

_UNFOLD = (torch.Tensor.unfold, torch.ops.aten.unfold, torch.ops.aten.unfold.default)
_NAMES = {"self": "tensor", "dimension": "dim"}


class GapError(Exception):
    """The model writes to windows that leave elements out, and no other views can replace them."""


class UnfoldMutationMode(TorchFunctionMode):
    """While active, replaces windows that leave elements out by other views, and writes to those
    views work as in eager.

    Some windows have no equivalent views: several windows, the last of which ends within a step.
    Writes to these are rejected.
    """

    def __init__(self) -> None:
        super().__init__()
        self._memories: set[StorageWeakRef] = set()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _UNFOLD:
            arguments = dict(zip(("tensor", "dim", "size", "step"), args, strict=False))
            arguments |= {_NAMES.get(name, name): value for name, value in kwargs.items()}
            if isinstance(arguments["tensor"], FunctionalTensor) and _skips_elements(**arguments):
                count_call("aot-windows-with-gaps")
                view = _unfold_by_slices(**arguments)
                if view is not None:
                    return view
                self._memories.add(memory_of(arguments["tensor"]))
        for tensor in written(function, args, kwargs) if self._memories else ():
            if isinstance(tensor, FunctionalTensor) and tensor._is_view() and memory_of(tensor) in self._memories:
                raise GapError("the windows of unfold do not cover the last elements; write to a copy, or to slices")
        return function(*args, **kwargs)


def _skips_elements(tensor: torch.Tensor, dim: int, size: int, step: int) -> bool:
    """Whether an element may be in no window and no element is in two, so that windows may be
    written to.
    """
    if not tensor.dim():
        return False
    length = tensor.shape[dim]
    alone = statically_known_true(length < size + step)
    return (size <= step or alone) and not statically_known_true(length == (size if alone else length // step * size))


def _unfold_by_slices(tensor: torch.Tensor, dim: int, size: int, step: int) -> torch.Tensor | None:
    """The view that ``unfold`` makes, built of slices and split dimensions; null if that is
    impossible.
    """
    dim %= tensor.dim()
    length = tensor.shape[dim]
    if not size or not statically_known_true(length >= size):
        return None
    if statically_known_true(length < size + step):
        rows = tensor.narrow(dim, 0, size).unsqueeze(dim)
    elif size == 1:
        rows = tensor[(slice(None),) * dim + (slice(None, None, step),)].unsqueeze(dim + 1)
    else:
        count = (length - size) // step + 1
        if not statically_known_true(length >= count * step):
            return None
        rows = tensor.narrow(dim, 0, count * step).unflatten(dim, (count, step)).narrow(dim + 1, 0, size)
    return rows.movedim(dim + 1, -1)

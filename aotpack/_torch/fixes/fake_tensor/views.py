"""Fixes of the sizes and strides that torch computes for fake tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import guard_or_false

from ...api.patching import patched, with_items
from ..applying import counted


@contextlib.contextmanager
def select_from_expanded() -> Iterator[None]:
    """Let ``masked_select`` return more elements than the tensor has, if the tensor is broadcast to
    its mask.
    """
    operator = torch.ops.aten.masked_select.default
    select = fake_impls.op_implementations_dict[operator]

    def expanded(mode: FakeTensorMode, func: Any, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return select(mode, func, *torch.broadcast_tensors(tensor, mask))  # type: ignore[no-any-return]

    rule = {operator: counted("fake-masked-select-of-expanded", expanded)}
    with with_items("fake-masked-select-of-expanded", fake_impls, "op_implementations_dict", rule):
        yield


@contextlib.contextmanager
def find_strides_of_views() -> Iterator[None]:
    """Compute the strides of a view without a guard on sizes of 1: the strides are the same either
    way.
    """
    strides_of_view: Callable[..., Any] = fake_impls._compute_stride

    def strides(shape: Any, stride: Any, viewed: Any, size_oblivious: bool = False) -> Any:
        return strides_of_view(shape, stride, viewed, True) or strides_of_view(shape, stride, viewed, size_oblivious)

    with patched("fake-strides-of-views", fake_impls, "_compute_stride", strides):
        yield


@contextlib.contextmanager
def find_ends_of_slices() -> Iterator[None]:
    """Compute where a slice ends from the size, if it is unknown which one is smaller: ``x[:2]`` of
    a batch that may be 1 has ``min(2, batch)`` rows, not an unknown number.
    """
    known: Callable[..., Any] = fake_impls._compute_slice_index

    def index(size: Any, wanted: Any) -> Any:
        found = known(size, wanted)
        if found is not None:
            return found
        if guard_or_false(wanted >= 0):
            return torch.sym_min(wanted, size)
        return torch.sym_max(wanted + size, 0) if guard_or_false(wanted < 0) else None

    with patched("fake-ends-of-slices", fake_impls, "_compute_slice_index", index):
        yield

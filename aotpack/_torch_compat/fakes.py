"""What kernels return, for operators of which torch knows no sizes: without that it traces none of them.

Tried on: torch 2.13.0, 2.9.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import _constrain_range_for_size

from .strides import strides_of_kernels

_aten = torch.ops.aten
_Tensors = tuple[torch.Tensor, torch.Tensor]


def _ctc_loss(mode: FakeTensorMode, func: Any, x: torch.Tensor, targets: Any, sizes: Any, lengths: Any, *rest: Any) -> _Tensors:
    """A loss for each of the batch, and the probabilities of each step, as many as the longest target has places."""
    steps, batch, _ = x.shape
    places: Any
    if isinstance(lengths, torch.Tensor):
        if mode.shape_env is None or not mode.shape_env.allow_dynamic_output_shape_ops:
            raise DynamicOutputShapeException(func)
        places = mode.shape_env.create_unbacked_symint()
        _constrain_range_for_size(places)
    else:
        places = 2 * max(lengths, default=0) + 1
    return x.new_empty(batch), x.new_empty(batch, steps, places)


def _ctc_loss_backward(mode: FakeTensorMode, func: Any, gradient: torch.Tensor, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _geqrf(mode: FakeTensorMode, func: Any, x: torch.Tensor) -> _Tensors:
    *batch, rows, columns = x.shape
    return x.new_empty(*batch, columns, rows).mT, x.new_empty(*batch, min(rows, columns))


def _histogram(mode: FakeTensorMode, func: Any, x: torch.Tensor, bins: int | torch.Tensor = 100, **options: Any) -> _Tensors:
    count = bins.shape[0] - 1 if isinstance(bins, torch.Tensor) else bins
    return x.new_empty(count), x.new_empty(count + 1)


def _edges(mode: FakeTensorMode, func: Any, x: torch.Tensor, bins: Sequence[int], **options: Any) -> list[torch.Tensor]:
    return [x.new_empty(count + 1) for count in bins]


def _counts(mode: FakeTensorMode, func: Any, x: torch.Tensor, bins: Sequence[int | torch.Tensor], **options: Any) -> torch.Tensor:
    return x.new_empty([one.shape[0] - 1 if isinstance(one, torch.Tensor) else one for one in bins])


_FAKES: dict[Any, Callable[..., Any]] = {
    _aten._ctc_loss.default: _ctc_loss,
    _aten._ctc_loss.Tensor: _ctc_loss,
    _aten._ctc_loss_backward.default: _ctc_loss_backward,
    _aten._ctc_loss_backward.Tensor: _ctc_loss_backward,
    _aten.geqrf.default: _geqrf,
    _aten.histogram.bin_ct: _histogram,
    _aten.histogram.bins_tensor: _histogram,
    _aten._histogramdd_bin_edges.default: _edges,
    _aten._histogramdd_from_bin_cts.default: _counts,
    _aten._histogramdd_from_bin_tensors.default: _counts,
}


@contextlib.contextmanager
def fakes_of_kernels() -> Iterator[None]:
    """Let these operators run on fake tensors, and all have the strides there that kernels give real ones."""
    with mock.patch.dict(fake_impls.op_implementations_dict, _FAKES), strides_of_kernels():
        yield

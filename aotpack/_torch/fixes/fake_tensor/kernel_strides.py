"""Strides of real kernels' results, for operators whose fake kernels or decompositions have other strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import make_channels_last_strides_for, make_contiguous_strides_for, suggest_memory_format
from torch.fx.experimental.symbolic_shapes import statically_known_true

Strides = Callable[[Sequence[Any], torch.Tensor], Sequence[Any]]
"""Computes the strides of a kernel's first result from the kernel's arguments and that result."""


def _rows(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """Contiguous strides, whatever the strides of the arguments."""
    return make_contiguous_strides_for(result.shape)


def _images(index: int) -> Strides:
    """Channels-last if that argument is channels-last, else as :func:`_rows`."""

    def strides(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
        if result.dim() in (4, 5) and suggest_memory_format(args[index]) != torch.contiguous_format:
            return make_channels_last_strides_for(result.shape)
        return _rows(args, result)

    return strides


def _elementwise(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """Strides of an elementwise function of the first two arguments."""
    return torch.mul(args[0], args[1]).stride()


def _of_result(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """Strides of an elementwise function of a gradient and, as the last argument, an input or a result."""
    return _elementwise((args[0], args[-1]), result)


def _rolled(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """As :func:`_images`, if parts of the tensor are concatenated: it is not flattened, and each dimension moves."""
    x, shifts, dims = args
    if statically_known_true(x.numel() == 0):
        return _rows(args, result)
    moves = [not statically_known_true(shift % x.shape[dim] == 0) for shift, dim in zip(shifts, dims or (), strict=False)]
    return _images(0)(args, result) if moves and all(moves) else _rows(args, result)


def _noisy(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """In training, the strides of noise times gradient; else, of input times gradient."""
    gradient, tensor, noise, lower, upper, training = args[:6]
    return (torch.mul(noise, gradient) if training and upper - lower > 1e-6 else torch.mul(tensor, gradient)).stride()


def _volumes(one: int, several: int) -> Strides:
    """As :func:`_images`: a single volume follows the argument ``one``, a batch follows the
    argument ``several``.
    """

    def strides(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
        if result.dim() == 5:
            return _images(several)(args, result)
        volume = args[one].unsqueeze(0)
        if volume.is_contiguous(memory_format=torch.channels_last_3d) and not volume.is_contiguous():
            return make_channels_last_strides_for((1, *result.shape))[1:]
        return _rows(args, result)

    return strides


def _like(index: int) -> Strides:
    """Strides of ``empty_like`` of an argument, unless the result is reduced to a number."""
    return lambda args, result: torch.empty_like(args[index]).stride() if result.dim() else ()


def _slices(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """Strides with slices of the dimension ``dim`` stored one after another; without ``dim``, as
    :func:`_rows`.
    """
    dim = next((arg for arg in args[1:] if type(arg) is int), None)
    if dim is None:
        return _rows(args, result)
    strides = list(make_contiguous_strides_for(result.movedim(dim, 0).shape))
    strides.insert(dim % result.dim(), strides.pop(0))
    return strides


def _scaled(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """Strides of a product with powers of two, which are contiguous."""
    return torch.mul(args[0], torch.empty(args[1].shape, device=args[1].device)).stride()


_KERNELS: dict[str, Strides] = {
    "_batch_norm_no_update": _images(0),
    "_batch_norm_with_update": _images(0),
    "_batch_norm_with_update_functional": _images(0),
    "_log_softmax_backward_data": _rows,
    "_native_batch_norm_legit": _images(0),
    "_native_batch_norm_legit.no_stats": _images(0),
    "_native_batch_norm_legit_functional": _images(0),
    "_native_batch_norm_legit_no_training": _images(0),
    "_standard_gamma": _rows,
    "_standard_gamma_grad": _rows,
    "batch_norm_backward": _images(1),
    "binary_cross_entropy": _like(0),
    "binary_cross_entropy_backward": _like(1),
    "channel_shuffle": _images(0),
    "copysign.Tensor": _elementwise,
    "div.Tensor_mode": _elementwise,
    "elu_backward": _of_result,
    "floor_divide": _elementwise,
    "glu_backward": _rows,
    "hardsigmoid_backward": _elementwise,
    "hardswish_backward": _elementwise,
    "hardtanh_backward": _elementwise,
    "heaviside": _elementwise,
    "huber_loss_backward": _rows,
    "index_fill.int_Scalar": _like(0),
    "index_fill.int_Tensor": _like(0),
    "lcm": _elementwise,
    "ldexp.Tensor": _scaled,
    "log_sigmoid_forward": _rows,
    "logaddexp": _elementwise,
    "logical_and": _elementwise,
    "logical_or": _elementwise,
    "logical_xor": _elementwise,
    "logit_backward": _elementwise,
    "max_pool3d_with_indices": _volumes(0, 0),
    "max_pool3d_with_indices_backward": _volumes(0, 1),
    "max_unpool2d": _images(0),
    "mse_loss_backward": _rows,
    "native_batch_norm": _images(0),
    "native_batch_norm_backward": _images(1),
    "native_dropout_backward": _elementwise,
    "native_layer_norm_backward": _rows,
    "nll_loss2d_forward": _rows,
    "normal.Tensor_Tensor": _rows,
    "normal.float_Tensor": _rows,
    "poisson": _rows,
    "pow.Scalar": _rows,
    "reflection_pad2d": _images(0),
    "reflection_pad2d_backward": _images(1),
    "reflection_pad3d": _images(0),
    "reflection_pad3d_backward": _images(1),
    "replication_pad2d": _images(0),
    "replication_pad2d_backward": _images(1),
    "replication_pad3d": _images(0),
    "replication_pad3d_backward": _images(1),
    "roll": _rolled,
    "rrelu_with_noise": _rows,
    "rrelu_with_noise_backward": _noisy,
    "smooth_l1_loss_backward": _rows,
    "softplus_backward": _elementwise,
    "special_xlog1py": _elementwise,
    "unique_consecutive": _slices,
    "unique_dim": _slices,
    "unique_dim_consecutive": _slices,
    "xlogy.Tensor": _elementwise,
}
"""Operators whose fake kernels return wrong strides, with functions that compute the real kernels'
strides.
"""

_DECOMPOSED = (
    "_upsample_nearest_exact1d",
    "adaptive_max_pool3d",
    "cat",
    "fmax",
    "fmin",
    "lerp.Tensor",
    "put",
    "stack",
    "upsample_nearest1d",
    "upsample_nearest3d",
    "view_copy",
)
"""Further operators of which only decompositions have wrong strides."""


def operator_named(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


KERNELS = {operator_named(name): strides for name, strides in _KERNELS.items()}
DECOMPOSED = frozenset(KERNELS) | frozenset(map(operator_named, _DECOMPOSED))

"""Operators for which a graph calls eager's kernel, because it is faster than generated code.

Inductor decomposes them into gathers, whose gradients are additions by index, or into a masked
loop over each window. A step of a network with trilinear interpolation took 1.5 times eager's. The
gradient of ``avg_pool3d`` took 31 ms where eager's kernel takes 0.6. That of ``avg_pool2d`` with windows
of 5 by 5 at each element takes three times as long as eager's kernel; windows that do not overlap take half as
long. The gradient of ``max_pool2d`` is an addition by index, which takes twice as long for channels-last images.
``fold`` is one, too. ``unfold`` is generated, but by a shorter rule than torch's. ``erfinv`` has no vectors in
generated code.

Others are called for their values: ``adaptive_max_pool2d``, whose generated code does not find NaN, ``nextafter`` in
half precision, which generated code computes in float32, and ranges of numbers (:data:`RANGES`, ``arange`` in fractions).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from sympy import Expr
from torch._decomp import decompositions as torch_rules
from torch._inductor import ir, lowering, virtualized
from torch.fx import Node
from torch.utils._sympy.functions import FloorDiv

from ..api.dispatch_rules import rule_of, ruled, unruled
from ..api.patching import with_items
from ..api.torch_types import HALVES
from .pool_gradients import POOLS, call_without_image, memory_as

_aten = torch.ops.aten
_VIEWS: Final = (_aten.permute.default, _aten.reshape.default, _aten.squeeze.dim, _aten.unsqueeze.default, _aten.view.default)
EAGER_KERNELS: Final = (
    _aten.col2im.default,
    _aten.erfinv.default,
    _aten.grid_sampler_2d.default,
    _aten.upsample_bicubic2d.default,
    _aten.upsample_trilinear3d.default,
)
RANGES: Final = (
    _aten.arange.start_step,
    *(getattr(_aten.hann_window, overload) for overload in ("default", "periodic")),
    *(
        getattr(packet, overload)
        for packet in (_aten.linspace, _aten.logspace)
        for overload in ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
    ),
)
"""Operators that make values between two ends. Kernels round them otherwise than generated code: integers and halves differ."""
_ON_CHANNELS_LAST: Final = (
    _aten.upsample_bilinear2d.default,
    _aten.upsample_bilinear2d_backward.default,
)
"""Operators whose kernels take a fifth of the time for channels-last images, which Inductor has around convolutions, too."""
_CHANNELS: Final = 8
"""The number of channels from which on that is so. With three it is not."""
_INTERPOLATIONS: Final = ("upsample_bicubic2d", "upsample_bilinear2d", "upsample_trilinear3d")
KEPT_WHOLE: Final = (
    *EAGER_KERNELS,
    _aten.im2col.default,
    _aten.max_pool2d_with_indices_backward.default,
    _aten.upsample_bilinear2d.default,
)
"""Operators that are not decomposed before Inductor lowers a graph."""
_SHRINKS: Final = (_aten.hardshrink.default, _aten.softshrink.default)
"""Operators with gradients of their own. torch's rules above autograd are differentiated instead, after they rounded bounds."""


def kept(*_: Any, **__: Any) -> Any:
    """A decomposition by which an operator stays as it is."""
    return NotImplemented


@contextlib.contextmanager
def kept_above_autograd(decompositions: Mapping[Any, Any]) -> Iterator[None]:
    """Trace the operators that ``decompositions`` keep without torch's rules above autograd, too. The same goes for shrinks."""
    operators = {operator for operator, rule in decompositions.items() if rule is kept}
    pairs = [(getattr(_aten, name).vec, getattr(_aten, name).default) for name in _INTERPOLATIONS]
    rules = {composite: _sized(operator, rule_of(operator)) for composite, operator in pairs if operator in operators}
    with unruled(operators.union(_SHRINKS)), ruled(rules):
        yield


def _sized(operator: Any, of_torch: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for an interpolation by sizes or by factors: a call of ``operator``, which takes both.

    Sizes that vary follow torch's rule. torch does not know the sizes of ``operator``'s gradient then.
    """

    def rule(x: Any, sizes: Sequence[Any] | None, align_corners: bool, factors: Sequence[float] | None) -> Any:
        sizes = torch_rules.upsample_compute_output_size(x.shape, sizes, factors)
        vary = any(isinstance(size, torch.SymInt) for size in (*x.shape, *sizes))
        return (of_torch if vary else operator)(x, sizes, align_corners, *(factors or ()))

    return rule


@contextlib.contextmanager
def eager_kernels_called() -> Iterator[None]:
    """Let compiled code call eager's kernels, on arguments with the strides for which they are fast.

    Most are fast for eager's. Inductor makes images channels-last.
    """
    calls = {operator: _call(operator) for operator in EAGER_KERNELS} | {
        operator: call_without_image(operator) for operator in POOLS
    }
    calls |= {operator: _call_on_channels_last(operator) for operator in _ON_CHANNELS_LAST}
    calls |= {
        **{operator: _range(operator) for operator in RANGES},
        _aten.avg_pool2d_backward.default: _averages_backward(),
        _aten.adaptive_max_pool2d.default: _call(_aten.adaptive_max_pool2d.default),
        _aten.convolution.default: _convolution(),
        _aten.im2col.default: _windows,
        _aten.max_pool2d_with_indices_backward.default: _maxima_backward(),
        _aten.nextafter.default: _next_numbers(),
    }
    with unruled(KEPT_WHOLE), with_items("inductor-eager-kernels", lowering, "lowerings", calls):
        yield


def _call(operator: Any) -> Callable[..., Any]:
    call: Callable[..., Any] = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lowered(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = lowering.constrain_to_fx_strides(virtualized.V.graph.current_node, *args, **kwargs)
        return call(*args, **kwargs)

    return lowered


def _call_on_channels_last(operator: Any) -> Callable[..., Any]:
    """A call on channels-last images, as the result then is, if they have enough channels."""
    in_eagers_layout = _call(operator)
    call: Callable[..., Any] = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lowered(x: Any, *args: Any, **kwargs: Any) -> Any:
        if virtualized.V.graph.sizevars.optimization_hint(x.get_size()[1]) < _CHANNELS:
            return in_eagers_layout(x, *args, **kwargs)
        dense = ir.FlexibleLayout.stride_ordered(x.get_size(), ir.NHWC_STRIDE_ORDER)  # for others the kernels copy, and are slow
        return call(ir.ExternKernel.require_exact_strides(x, dense), *args, **kwargs)

    return lowered


def _convolution() -> Callable[..., Any]:
    """A call if the number of groups varies. Inductor would fix it."""
    operator = _aten.convolution.default
    generated: Callable[..., Any] = lowering.lowerings[operator]
    call = _call(operator)

    def lowered(x: Any, weight: Any, bias: Any, *how: Any) -> Any:
        *_, groups = how
        return (call if isinstance(groups, Expr) and groups.free_symbols else generated)(x, weight, bias, *how)

    return lowered


def _averages_backward() -> Callable[..., Any]:
    """The gradient of ``avg_pool2d``: a call if windows overlap or exceed the image, else generated code.

    Inductor divides by the size of the whole window where ``ceil_mode`` cuts it off (pytorch#198119).
    """
    operator = _aten.avg_pool2d_backward.default
    generated: Callable[..., Any] = lowering.lowerings[operator]
    call = call_without_image(operator)

    def lowered(gradient: Any, x: Any, kernel: Sequence[int], stride: Sequence[int], padding: Any, ceil: bool, *rest: Any) -> Any:
        sides = [[*each] * (2 // len(each)) for each in (kernel, stride or kernel, padding)]  # one side may stand for both
        overlap = any(length > step for length, step in zip(*sides[:2], strict=True))
        return (call if overlap or ceil else generated)(gradient, x, *sides, ceil, *rest)

    return lowered


def _windows(x: Any, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]) -> Any:
    """``im2col`` by indices that Inductor knows. torch's rule reads them from memory, so no loop has vectors."""
    (kernel, dilation, padding, stride) = ([*sides] * (2 // len(sides)) for sides in (kernel, dilation, padding, stride))
    x.realize()  # each element is read for several windows
    *batch, channels, height, width = x.get_size()
    blocks = [
        FloorDiv(side + 2 * around - apart * (length - 1) - 1, step) + 1
        for side, around, apart, length, step in zip((height, width), padding, dilation, kernel, stride, strict=True)
    ]
    padded = lowering.lowerings[_aten.constant_pad_nd.default](x, [padding[1], padding[1], padding[0], padding[0]], 0)
    load = padded.make_loader()

    def element(index: Sequence[Any]) -> Any:
        *before, row, column, down, across = index
        return load([*before, down * stride[0] + row * dilation[0], across * stride[1] + column * dilation[1]])

    ranges = [*batch, channels, *kernel, *blocks]
    found = ir.Pointwise.create(device=x.get_device(), dtype=x.get_dtype(), inner_fn=element, ranges=ranges)
    if not _is_read_once(virtualized.V.graph.current_node):
        found.realize()
    shape = [*batch, channels * kernel[0] * kernel[1], blocks[0] * blocks[1]]
    return lowering.lowerings[_aten.view.default](found, shape)


def _is_read_once(node: Node) -> bool:
    """Whether one operator reads a result, or a view of it."""
    while len(node.users) == 1:
        (node,) = node.users
        if node.target not in _VIEWS:
            return True
    return False


def called_of_fractions(operator: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition by which a range stays as it is. One that varies, and ``arange`` of integers, follow ``rule``."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        vary = any(isinstance(each, torch.SymInt | torch.SymFloat) for each in (*args, *kwargs.values()))
        if vary or (operator is _aten.arange.start_step and all(float(end).is_integer() for end in args)):
            return rule(*args, **kwargs)
        return NotImplemented

    return decomposed


def _range(operator: Any) -> Callable[..., Any]:
    """A call, or generated code for ``arange`` of integers."""
    generated, call = lowering.lowerings.get(operator), _call(operator)

    def lowered(*args: Any, **kwargs: Any) -> Any:
        fractions = any(isinstance(end, float) and not end.is_integer() for end in args)
        return call(*args, **kwargs) if fractions or generated is None else generated(*args, **kwargs)

    return lowered


def _next_numbers() -> Callable[..., Any]:
    """``nextafter``: a call in half precision."""
    operator = _aten.nextafter.default
    generated: Callable[..., Any] = lowering.lowerings[operator]
    call = _call(operator)

    def lowered(x: Any, other: Any) -> Any:
        return (call if x.get_dtype() in HALVES else generated)(x, other)

    return lowered


def _maxima_backward() -> Callable[..., Any]:
    """The gradient of ``max_pool2d``, whose kernel takes the layout of the image and copies what has another.

    The image is not there (:mod:`.pool_gradients`). So the layout is that of the indices.
    """
    operator = _aten.max_pool2d_with_indices_backward.default
    call: Callable[..., Any] = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lowered(gradient: Any, x: Any, *window: Any) -> Any:
        size, stride = x.get_size(), window[-1].maybe_get_stride()
        last = len(size) == 4 and stride is not None and stride[1] == 1 and stride[3] != 1
        return call(gradient, memory_as(gradient, size, channels_last=last), *window)

    return lowered

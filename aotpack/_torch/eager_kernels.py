"""Operators for which a graph calls eager's kernel, because it is faster than generated code.

Inductor decomposes them into gathers, whose gradients are additions by index, or into a masked
loop over each window. A step of a network with trilinear interpolation took 1.5 times eager's. The
gradient of ``avg_pool3d`` took 31 ms where eager's kernel takes 0.6. That of ``avg_pool2d`` with windows
of 5 by 5 at each element takes three times as long as eager's kernel; windows that do not overlap take half as
long. The gradient of ``max_pool2d`` is an addition by index, which takes twice as long for channels-last images.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch._inductor import lowering, virtualized

from .api.dispatch_rules import unruled
from .api.patching import with_items

_aten = torch.ops.aten
EAGER_KERNELS: Final = (
    _aten.grid_sampler_2d.default,
    _aten.max_pool2d_with_indices_backward.default,
    _aten.upsample_bicubic2d.default,
    _aten.upsample_bicubic2d.vec,
    _aten.upsample_trilinear3d.default,
    _aten.upsample_trilinear3d.vec,
)


def kept(*_: Any, **__: Any) -> Any:
    """A decomposition by which an operator stays as it is."""
    return NotImplemented


def kept_above_autograd(decompositions: Mapping[Any, Any]) -> contextlib.AbstractContextManager[None]:
    """Trace the operators that ``decompositions`` keep without torch's rules above autograd, too."""
    return unruled([operator for operator, rule in decompositions.items() if rule is kept])


@contextlib.contextmanager
def eager_kernels_called() -> Iterator[None]:
    """Let compiled code call eager's kernels, on arguments with eager's strides.

    Their speed depends on the strides: Inductor makes images channels-last.
    """
    calls = {operator: _call(operator) for operator in (*EAGER_KERNELS, _aten.avg_pool3d_backward.default)}
    calls[_aten.avg_pool2d_backward.default] = _averages_backward()
    with unruled(EAGER_KERNELS), with_items("inductor-eager-kernels", lowering, "lowerings", calls):
        yield


def _call(operator: Any) -> Callable[..., Any]:
    call: Callable[..., Any] = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lowered(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = lowering.constrain_to_fx_strides(virtualized.V.graph.current_node, *args, **kwargs)
        return call(*args, **kwargs)

    return lowered


def _averages_backward() -> Callable[..., Any]:
    """The gradient of ``avg_pool2d``: a call if windows overlap, else generated code."""
    operator = _aten.avg_pool2d_backward.default
    generated: Callable[..., Any] = lowering.lowerings[operator]
    call = _call(operator)

    def lowered(gradient: Any, x: Any, kernel: Sequence[int], stride: Sequence[int], *rest: Any) -> Any:
        lengths, steps = ([*sides] * (2 // len(sides)) for sides in (kernel, stride or kernel))  # one side may stand for both
        overlap = any(length > step for length, step in zip(lengths, steps, strict=True))
        return (call if overlap else generated)(gradient, x, kernel, stride, *rest)

    return lowered

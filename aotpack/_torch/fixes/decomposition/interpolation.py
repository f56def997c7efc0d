"""Fixes of interpolation by a factor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._decomp import decompositions
from torch._prims_common import suggest_memory_format

from ...api.gradients import with_gradient
from ...api.patching import patched


@contextlib.contextmanager
def interpolate_by_sizes() -> Iterator[None]:
    """Let ``interpolate`` compute by sizes, not by the factor, if an output size is one or two
    times the input size.

    A size that the factor does not change is copied. A size that nearest interpolation doubles is
    repeated. Torch's rules use the factor there too.
    """
    nearest, linear = decompositions._upsample_nearest, decompositions._upsample_linear

    def plain(
        x: torch.Tensor, sizes: Sequence[int], factors: Sequence[float | None], multiples: Sequence[int]
    ) -> list[float | None]:
        """The factors, with None for each size that changes by exactly one of the ``multiples``."""
        shape = x.shape[-len(sizes) :]
        return [
            None if _is_fraction(factor) and any(new == multiple * old for multiple in multiples) else factor
            for old, new, factor in zip(shape, sizes, factors, strict=True)
        ]

    def resize_nearest(x: torch.Tensor, sizes: Sequence[int], factors: Sequence[float | None], exact: bool = False) -> Any:
        _require_pixels(sizes)
        by_sizes = list(factors) if exact else plain(x, sizes, factors, (1, 2))
        if len(sizes) != 2 and by_sizes != list(factors):  # 1-d and 3-d kernels use the factor, except for gradients
            if torch.is_grad_enabled() and x.requires_grad:
                raise NotImplementedError("interpolate with scale_factor: eager's gradient does not match its values; pass size=")
            by_sizes = list(factors)
        kept = torch.contiguous_format if len(sizes) == 1 else suggest_memory_format(x)  # torch 2.11 keeps other strides
        return _differentiated_as_images(x, lambda x: nearest(x, sizes, by_sizes, exact=exact).contiguous(memory_format=kept))

    def resize_linear(x: torch.Tensor, sizes: Sequence[int], align_corners: bool, factors: Sequence[float | None]) -> Any:
        _require_pixels(sizes)
        factors = factors if align_corners else plain(x, sizes, factors, (1,))
        return _differentiated_as_images(x, lambda x: linear(x, sizes, align_corners, factors))

    with (
        patched("decomposition-interpolate-by-a-factor", decompositions, "_upsample_nearest", resize_nearest),
        patched("decomposition-interpolate-by-a-factor", decompositions, "_upsample_linear", resize_linear),
    ):
        yield


def _differentiated_as_images(x: torch.Tensor, resize: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Resize images so that their gradient has the memory format of the result's gradient, as in eager's kernels.

    Torch's rules are differentiated as additions by index, whose result is contiguous.
    """

    def in_format(given: torch.Tensor, resized: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        return found.contiguous(memory_format=suggest_memory_format(given))

    return with_gradient(x, resize, in_format) if x.dim() > 3 else resize(x)


def _require_pixels(sizes: Sequence[int]) -> None:
    """Refuse an empty output, as eager's kernels do. A size that varies gets a constraint."""
    for size in sizes:
        torch._check(size > 0, lambda: f"Input and output sizes should be greater than 0, got the output {list(sizes)}")


def _is_fraction(factor: float | None) -> bool:
    """Whether a factor is fractional, so that sizes must be compared; a whole factor needs no
    comparison of dynamic sizes.
    """
    return isinstance(factor, float) and not factor.is_integer()

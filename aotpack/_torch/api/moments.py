"""Variance and mean as eager's kernels compute them."""

from __future__ import annotations

import math

import torch

from .torch_types import HALVES


def moments(x: torch.Tensor, dim: list[int] | None, correction: float | None, keepdim: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Variance and mean of real numbers in ``float64``. A mean that is not finite is NaN, as in eager's kernel.

    Those of halves are two sums: Inductor has no vectors of ``float64`` for its own rule beside halves.
    """
    if x.dtype not in HALVES:
        variance, mean = torch.var_mean(x.double(), dim, correction=correction, keepdim=keepdim)
        return variance, mean - (mean - mean)
    wide, dims = x.double(), [*(dim or range(x.dim()))]
    mean = wide.mean(dims, keepdim=True)
    mean = mean - (mean - mean)
    squares = (wide - mean).square().sum(dims, keepdim=keepdim)
    count = math.prod(x.shape[each] for each in dims)
    divisor = torch.sym_max(count - (1 if correction is None else correction), 0)
    return squares / divisor, mean if keepdim else mean.view(squares.shape)

"""Arguments with values that an operator may refuse or treat as special: out of range, NaN, infinite, too small for a unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from .samples import Sample, twins

REALS = (float("nan"), float("inf"), -1.5, 0.0, 1e-42, 3e38)
INTEGERS = (-1, 0, 1000)
"""1,000 is beyond every size of the databases' samples."""


def unusual(sample: Sample) -> Iterator[Sample]:
    """The sample with another value in the first element of one tensor, for each tensor and value.

    None where results are undefined, or the operator's own kernels end the process.
    """
    if sample.fixed or sample.undefined:
        return
    for position, tensor in enumerate(sample.tensors):
        if tensor.layout != torch.strided or tensor.numel() == 0 or tensor.dtype == torch.bool:
            continue
        for value in REALS if tensor.dtype.is_floating_point or tensor.dtype.is_complex else INTEGERS:
            if value == 3e38 and tensor.dtype == torch.float16:
                continue
            given = twins(sample.tensors)
            given[position].detach()[(0,) * tensor.dim()] = value
            yield replace(sample, name=f"{sample.name}, {value} in tensor {position}", tensors=tuple(given))

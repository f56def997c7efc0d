"""Fixes of the example tangents that AOTAutograd traces a backward with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd import collect_metadata_analysis
from torch._functorch._aot_autograd.schemas import MemoryFormatMeta
from torch._prims_common import suggest_memory_format

from ...api.patching import patched, replaced
from ..applying import count_call


@contextlib.contextmanager
def resolve_tangents() -> Iterator[None]:
    """Trace tangents that are not lazily conjugated or negated, unlike some results: the loader
    passes none that are.
    """
    coerce = collect_metadata_analysis.coerce_tangent_and_suggest_memory_format

    def resolved(tangent: Any) -> Any:
        return coerce(tangent.resolve_conj().resolve_neg() if isinstance(tangent, torch.Tensor) else tangent)

    with patched("aot-lazy-tangents", collect_metadata_analysis, "coerce_tangent_and_suggest_memory_format", resolved):
        yield


@contextlib.contextmanager
def copy_overlapping_gradients() -> Iterator[None]:
    """Treat gradients of results whose elements share memory as contiguous (``x.unfold(0, 2,
    1).select_scatter(y, 0, 1)``).

    AOTAutograd copies a gradient to the strides of its result, unless it is expanded. Elements with
    the same address would overwrite each other.
    """
    described = MemoryFormatMeta.from_tensor

    def contiguous_if_overlapping(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> MemoryFormatMeta | None:
        found = described(tensor, *args, **kwargs)
        if found is None or found.stride is None or _is_nested(found.size or (), found.stride):
            return found
        count_call("aot-gradients-of-overlapping-results")
        return MemoryFormatMeta(memory_format=suggest_memory_format(tensor))

    with replaced("aot-gradients-of-overlapping-results", MemoryFormatMeta, "from_tensor", contiguous_if_overlapping):
        yield


def _is_nested(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether each stride exceeds the extent of the smaller dimensions, so that no two elements
    share an address.
    """
    reach = 1
    for step, n in sorted((step, n) for step, n in zip(stride, size, strict=True) if n > 1):
        if step < reach:
            return False
        reach += (n - 1) * step
    return True

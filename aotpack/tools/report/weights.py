"""Compares the values of two bundles' parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from aotpack_loader.format import schema, subclasses

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle


@dataclass(frozen=True)
class WeightChange:
    """A tensor with other values. ``largest``: the largest difference of an element; ``relative``:
    the norm of the difference, divided by that of the first; both NaN where NaN or infinity came or went.
    """

    name: str
    largest: float
    relative: float


def compare_weights(first: Bundle, second: Bundle) -> Iterator[WeightChange]:
    """Yield the tensors of the state with other values; those of one bundle, or of another type, are left out."""
    blobs = [[blob.digest for blob in bundle.program.weights] for bundle in (first, second)]
    if blobs[0] == blobs[1] and first.program.state == second.program.state:
        return
    old, new = first.weights(), second.weights()
    after = {entry.name: entry for entry in second.program.state}
    for entry in first.program.state:
        other = after.get(entry.name)
        if other is None or entry.tied_to is not None:
            continue
        pairs = list(zip(_stored(entry), _stored(other), strict=False))
        if any((a.dtype, list(a.shape)) != (b.dtype, list(b.shape)) for a, b in pairs):
            continue
        yield from _changed(entry.name, [(old.tensor(a), new.tensor(b)) for a, b in pairs])


def _stored(entry: schema.StateEntry) -> list[Any]:
    return [entry] if entry.subclass is None else list(subclasses.stored_parts(entry.subclass))


def _changed(name: str, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[WeightChange]:
    differing = [(_exact(a), _exact(b)) for a, b in pairs if not torch.equal(a, b)]
    differences = [_difference(a, b) for a, b in differing]
    if not any(bool(difference.any()) for difference in differences):
        return
    largest = max(float(difference.max()) for difference in differences)
    distance = sum(float(difference.square().sum()) for difference in differences) ** 0.5
    length = sum(float(a.abs().square().sum()) for a, _ in differing) ** 0.5
    yield WeightChange(name, largest, distance / length if length else float("inf"))


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The size of the difference of each element; zero where both are NaN."""
    return torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())

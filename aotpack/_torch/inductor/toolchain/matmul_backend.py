"""Measures which library multiplies matrices faster here: the one that torch calls, or oneDNN.

torch's products of float32 are MKL's, whose code for other processors than Intel's can take twice
as long as oneDNN's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

SIDES: Final = (64, 128, 256, 512)
"""Sides of the square matrices that are multiplied, from small to large."""
_ROUNDS: Final = 9
_WORK: Final = 2**25
"""Multiplications of a round, at least."""
_GAIN: Final = 0.8
"""oneDNN is chosen where it takes at most this share of the other's time."""


def products_by_onednn() -> int:
    """The number of multiplications from which on products are oneDNN's; 0 for no products."""
    return smallest_gain({side**3: _ratio(side) for side in SIDES})


def smallest_gain(ratios: Mapping[int, float]) -> int:
    """The smallest key from which on all ratios are a gain, or 0."""
    found = 0
    for count in sorted(ratios, reverse=True):
        if ratios[count] > _GAIN:
            break
        found = count
    return found


def _ratio(side: int) -> float:
    """oneDNN's time for a product beside that of torch's library: the median of rounds, in turns."""
    made = torch.Generator().manual_seed(0)
    first, second = (torch.rand(side, side, generator=made) for _ in range(2))
    multiply = torch.ops.mkldnn._linear_pointwise  # which takes the second matrix transposed
    repeats = max(1, _WORK // side**3)
    ways: Sequence[Callable[[], object]] = (
        lambda: torch.mm(first, second.t()),
        lambda: multiply(first, second, None, "none", [], ""),
    )
    with torch.no_grad():
        for way in ways:
            way()
        rounds = [[_seconds(way, repeats) for way in ways] for _ in range(_ROUNDS)]
    return statistics.median(onednn / other for other, onednn in rounds)


def _seconds(way: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        way()
    return time.perf_counter() - start

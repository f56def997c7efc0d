"""Tells rounding from errors.

Eager runs again on numbers that are rounded differently, and its spread is a measure. Eager's own
distance from a run in float64 is another, where that spread explains it. A bundle may be a few
times as far.
"""

from __future__ import annotations

import torch

from .observation import Observation, largest

FEW = 8
"""How many times as far from the exact values as eager a bundle may be.

On MobileNetV2 in train mode the code of Inductor, also that of ``torch.compile``, is 4.5 times as far.
"""
_EQUAL = {torch.float16: 4.0, torch.bfloat16: 4.0, torch.float64: 1e4, torch.complex128: 1e4}
"""Up to how many epsilons values count as equal without a closer look; 64 of other types."""

_VANISHING = 64
"""How many epsilons of the largest gradient a gradient may be off by: the roundings of 4,096 terms that cancel."""


def is_equal(eager: torch.Tensor, bundle: torch.Tensor) -> bool:
    """Whether two values differ by a few roundings at most, relative to the largest element."""
    if eager.dtype == torch.complex32:  # torch has no arithmetic for it
        eager, bundle = eager.to(torch.complex64), bundle.to(torch.complex64)
    if torch.equal(eager, bundle):
        return True
    if not _is_real(eager):
        return False
    if not _same_nonfinite(eager, bundle):
        return False
    limit = _EQUAL.get(eager.dtype, 64.0) * torch.finfo(eager.dtype).eps
    if limit > 1e-3:  # a half type has too small a range for what follows
        eager, bundle = _wide(eager), _wide(bundle)
    return torch.allclose(bundle, eager, rtol=limit, atol=limit * largest(eager), equal_nan=True)


Moved = list[tuple[int, dict[str, torch.Tensor | None]]]
"""Eager's values by path where every result is off by up to so many roundings. Those that are off by none come first.

They show what eager does while its operators are watched: it may then take another way, as ``nn.TransformerEncoder`` does.
That is no rounding, so spreads are measured from there.
"""


def is_rounding(path: str, eager: Observation, bundle: Observation, exact: Observation | None, nudged: Moved) -> bool:
    """Whether the values at ``path`` differ by rounding alone. ``exact`` is eager in float64."""
    ours, theirs = value_at(eager, path), value_at(bundle, path)
    if ours is None or theirs is None:
        return False
    runs = [(by, value) for by, seen in nudged if (value := seen.get(path)) is not None and value.shape == ours.shape]
    still = next((value for by, value in runs if not by), ours)
    runs = [(by, value) for by, value in runs if by]
    moved = [value for _, value in runs]
    if not _is_real(ours):
        return bool(moved) and _moves_alike(ours, theirs, still, moved)
    best = value_at(exact, path) if exact is not None else None
    if best is not None and (best.shape != ours.shape or not _is_real(best) or bool((ours.isfinite() & ~best.isfinite()).any())):
        best = None
    if best is None and not moved:
        return False
    dtype, eps = ours.dtype, torch.finfo(ours.dtype).eps
    ours, theirs, still, moved = _wide(ours), _wide(theirs), _wide(still), list(map(_wide, moved))
    reference = ours if best is None else _wide(best)
    if not bool((_same_kinds(ours, theirs, still, moved) | _at_the_largest(theirs, reference, dtype)).all()):
        return False
    compared = ours.isfinite() & theirs.isfinite()
    spreads = [_distance(value, still, compared & still.isfinite() & value.isfinite()) for value in moved]
    jumps = max((max(FEW / by, 2) * spread for (by, _), spread in zip(runs, spreads, strict=True)), default=0.0)
    allowed = max(FEW * eps * largest(ours[compared]), jumps, _vanishing(path, dtype, eager))
    own = _distance(ours, reference, compared)
    if moved and own > allowed:  # the run in float64 took another way: a branch on the type, or on strides
        own, reference = 0.0, ours
    return _distance(theirs, reference, compared) <= max(FEW * own, allowed)


def _vanishing(path: str, dtype: torch.dtype, eager: Observation) -> float:
    """How far a gradient may be off that vanishes but for rounding, as that of a bias before a norm does.

    Its terms cancel, and are as large as the other gradients.
    """
    if not path.endswith(".grad"):
        return 0.0
    return min(_VANISHING * torch.finfo(dtype).eps, 1e-5) * eager.largest_gradients.get(dtype, 0.0)


def value_at(seen: Observation, path: str) -> torch.Tensor | None:
    """The recorded value at a path, or None."""
    value = seen.tensors[path].value if path in seen.tensors else seen.after.get(path)
    return value.to_dense() if value is not None and value.layout != torch.strided else value


def _moves_alike(eager: torch.Tensor, bundle: torch.Tensor, still: torch.Tensor, moved: list[torch.Tensor]) -> bool:
    """Whether integers and truth values differ only where eager's own hang on the last bits."""
    loose = torch.zeros(eager.shape, dtype=torch.bool)
    for value in moved:
        loose |= value != still
    return not bool(((eager != bundle) & ~loose).any())


def _same_kinds(ours: torch.Tensor, theirs: torch.Tensor, still: torch.Tensor, moved: list[torch.Tensor]) -> torch.Tensor:
    """Where the bundle is NaN, infinite or finite as eager is, or as a moved run is and the still one is not.

    Infinity and NaN are one where eager's own gives way to a number: of two values that are rounding alone, either may be 0.
    """
    own, kind, before = map(_kinds, (ours, theirs, still))
    same = kind == own
    for value in moved:
        seen = _kinds(value)
        same |= (seen != before) & ((seen == kind) | ((own != 0) & (kind != 0)))
    return same


def _kinds(value: torch.Tensor) -> torch.Tensor:
    """2 where a value is NaN, 1 or -1 where it is infinite, and 0 elsewhere."""
    infinite = value.isinf()
    sign = infinite if value.is_complex() else infinite * value.sign().nan_to_num()
    return torch.where(value.isnan(), 2, sign.int())


def _at_the_largest(theirs: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Where a few roundings of ``dtype`` decide whether a value is infinite."""
    most, few = torch.finfo(dtype).max, FEW * torch.finfo(dtype).eps
    near = (reference.abs() / most - 1).abs() <= few
    return near & (theirs.abs() >= most * (1 - few)) & (theirs.sgn() == reference.sgn())


def _is_real(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _same_nonfinite(a: torch.Tensor, b: torch.Tensor) -> bool:
    odd = ~a.isfinite()
    if not bool(odd.any()) and bool(b.isfinite().all()):
        return True
    return torch.equal(odd, ~b.isfinite()) and torch.allclose(a[odd], b[odd], equal_nan=True)


def _distance(a: torch.Tensor, b: torch.Tensor, where: torch.Tensor) -> float:
    difference = (a - b)[where].abs()
    return float(difference.max()) if difference.numel() else 0.0

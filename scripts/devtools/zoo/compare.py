"""Compares a bundle's results with eager's.

An error is the largest difference within a tensor, relative to the tensor's largest value. For
gradients and parameters the reference is at least a hundredth of the largest of them all. Some
vanish (the bias of an attention's keys has no effect), and float32 has seven digits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

FLOOR = 1e-2
KINDS = ("loss", "outputs", "gradients", "buffers", "generator", "parameters", "inference")


class DifferenceError(Exception):
    """A bundle's results differ from eager's."""


def compare(expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest relative error of each kind of result.

    Raises:
        DifferenceError: one of them has results that the other lacks.
    """
    missing, extra = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
    if missing or extra:
        raise DifferenceError(f"other results than eager: {few(missing)} missing, {few(extra)} unexpected")
    errors = dict.fromkeys(KINDS, 0.0)
    largest = dict.fromkeys(map(group_of, expected), 0.0)
    for name, value in expected.items():
        largest[group_of(name)] = max(largest[group_of(name)], magnitude(value))
    for name, value in expected.items():
        kind = name.partition("/")[0]
        floor = FLOOR * largest[group_of(name)] if kind in ("gradients", "parameters") else 0.0
        errors[kind] = max(errors[kind], relative_error(actual[name], value, floor))
    return errors


def judge(errors: Mapping[str, float], limit: float) -> None:
    """Raise an error if a result's error exceeds ``limit``.

    Raises:
        DifferenceError: names every kind of result that exceeds it.
    """
    over = [f"{kind} by {error:.1e}" for kind, error in errors.items() if not error <= limit]
    if over:
        raise DifferenceError(f"differs from eager: {', '.join(over)} (allowed {limit:.0e})")


def group_of(name: str) -> str:
    """Kind and step: ``gradients/1`` for ``gradients/1/lm_head.weight``."""
    return name.rpartition("/")[0]


def magnitude(value: Tensor) -> float:
    return float(value.double().abs().max()) if value.numel() else 0.0


def relative_error(actual: Tensor, expected: Tensor, floor: float) -> float:
    """Largest difference over largest value; infinite if type, shape or an integer differs."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return math.inf
    if not expected.is_floating_point():
        return 0.0 if torch.equal(actual, expected) else math.inf
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    if bool(same.all()):
        return 0.0
    error = magnitude(torch.where(same, 0.0, actual.double() - expected.double()))
    scale = max(magnitude(expected), floor)
    return error / scale if scale and math.isfinite(error / scale) else math.inf


def few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "none"

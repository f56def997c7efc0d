"""Finds how much memory a step allocates at its peak, and for which kernels."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from .recording import KernelSpan, StepTrace


@dataclass(frozen=True)
class Peak:
    """The memory that a step holds beyond what was there before it, when that is the most.

    ``size`` is in bytes. ``kernels`` has the bytes that each kernel's allocations hold then, by the
    kernel's index in the step; -1: allocated outside kernels.
    """

    size: int
    kernels: dict[int, int]


def peak_of(step: StepTrace) -> Peak:
    """The peak of one step.

    An allocation belongs to the kernel that runs. Compiled code allocates a result before its kernel
    starts, so what is allocated between two kernels belongs to the second one.
    """
    starts = [kernel.span.start for kernel in step.kernels]
    live: dict[int, tuple[int, int]] = {}
    total, peak = 0, Peak(0, {})
    for change in step.changes:
        if change.size > 0:
            live[change.address] = (change.size, _owner(change.at, starts, step))
            total += change.size
        elif change.address in live:  # else it was allocated before the step
            total -= live.pop(change.address)[0]
        if total > peak.size:
            peak = Peak(total, _by_kernel(live))
    return peak


def _by_kernel(live: dict[int, tuple[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for size, kernel in live.values():
        found[kernel] = found.get(kernel, 0) + size
    return found


def _owner(at: float, starts: list[float], step: StepTrace) -> int:
    """The index of the kernel that an allocation belongs to, or -1."""
    before = bisect.bisect_right(starts, at) - 1
    if before >= 0 and at <= step.kernels[before].span.end:
        return before
    after = before + 1
    return after if after < len(starts) and _part(at, step) == _part(starts[after], step) != "" else -1


def _part(at: float, step: StepTrace) -> str:
    return next((name for name, span in step.parts.items() if span.start <= at <= span.end), "")


def outermost(kernels: list[KernelSpan]) -> list[KernelSpan]:
    """The kernels that run inside no other one."""
    found: list[KernelSpan] = []
    for kernel in kernels:
        if not found or kernel.span.start >= found[-1].span.end:
            found.append(kernel)
    return found

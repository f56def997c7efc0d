"""Fixes of guards that Inductor adds on dynamic sizes without need, which bind code to the
example's sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir, lowering
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true
from torch.utils._sympy import functions

from ...api.patching import patched, with_items
from ..applying import counted


@contextlib.contextmanager
def call_adaptive_averages() -> Iterator[None]:
    """Call ATen's kernel for adaptive averages with dynamic sizes: Inductor unrolls the windows of
    the example's sizes.
    """
    fix = "inductor-adaptive-pool-sizes"
    operator = torch.ops.aten._adaptive_avg_pool2d.default
    lower = lowering.lowerings[operator]

    def pooled(x: Any, size: Any) -> Any:
        return (lower if _fixed(x.get_size()[-2:]) else lowering.fallback_adaptive_avg_pool2d)(x, size)

    with with_items(fix, lowering, "lowerings", {operator: counted(fix, pooled)}):
        yield


@contextlib.contextmanager
def keep_sizes_of_glu() -> Iterator[None]:
    """Compile ``glu`` without fixing the size that it halves."""

    def gated(x: Any, dim: int = -1) -> Any:
        half = functions.FloorDiv(x.get_size()[dim], 2)
        one, other = (lowering.slice_(x, dim, start, start + half, clamp=False) for start in (0, half))
        return lowering.mul(one, lowering.sigmoid(other))

    rule = {torch.ops.aten.glu.default: counted("inductor-glu-sizes", gated)}
    with with_items("inductor-glu-sizes", lowering, "lowerings", rule):
        yield


@contextlib.contextmanager
def order_strides_without_guards() -> Iterator[None]:
    """Order strides without a guard if sizes of at least 1 determine the order except for ties.

    If a size of 1 makes two strides equal (``48`` and ``48 * s``), both orders are correct.
    """
    in_order: Callable[..., list[int]] = ir.argsort_sym  # type: ignore[attr-defined]
    by_numbers: Callable[..., list[int]] = ir.argsort  # type: ignore[attr-defined]

    def by_strides(env: ShapeEnv, strides: Sequence[Any], *, reverse: bool = False) -> list[int]:
        return in_order(_SizesOfAtLeastOne(env), strides, reverse=reverse)

    def by_any_strides(strides: Sequence[Any], *, reverse: bool = False) -> list[int]:
        env = next((step.node.shape_env for step in strides if isinstance(step, torch.SymInt)), None)
        return by_numbers(strides, reverse=reverse) if env is None else by_strides(env, strides, reverse=reverse)

    with (
        patched("inductor-stride-order-guards", ir, "argsort_sym", by_strides),
        patched("inductor-stride-order-guards", ir, "argsort", by_any_strides),
    ):
        yield


@contextlib.contextmanager
def find_overlaps_without_guards() -> Iterator[None]:
    """Check whether a tensor overlaps itself without a guard on its sizes: the result only serves
    to reject writes.

    Torch first checks whether the tensor is dense, and therefore whether its sizes are below 2. The
    trace has already shown whether tensors that a graph writes to overlap themselves.
    """

    def overlap(tensor: torch.Tensor) -> int:
        sized = zip(tensor.shape, tensor.stride(), strict=True)
        return 1 if any(statically_known_true(step == 0) and statically_known_true(size > 1) for size, step in sized) else 2

    with patched("inductor-overlap-guards", torch, "_debug_has_internal_overlap", overlap):
        yield


def _fixed(sizes: Sequence[Any]) -> bool:
    return all(isinstance(size, (int, sympy.Integer)) for size in sizes)


class _SizesOfAtLeastOne:
    """Replaces a ``ShapeEnv`` in comparisons of strides; adds no guard if sizes of at least 1
    decide, except for ties.
    """

    def __init__(self, env: ShapeEnv) -> None:
        self.optimization_hint = env.optimization_hint
        self._env = env

    def evaluate_expr(self, question: Any) -> Any:
        """Whether one stride is less, or more, than another."""
        if isinstance(question, (sympy.StrictLessThan, sympy.StrictGreaterThan)):
            less, more = question.lts, question.gts
            if _never_less(more, less):
                return True
            if _never_less(less, more):
                return False
        return self._env.evaluate_expr(question)


def _never_less(one: Any, other: Any) -> bool:
    difference = one - other
    beyond = {symbol: sympy.Dummy(integer=True, nonnegative=True) + 1 for symbol in difference.free_symbols}
    return bool(sympy.expand(difference.subs(beyond)).is_nonnegative)

"""Inductor (torch 2.13) compiled for sizes that vary, where it compiles for the example's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.sizevars import SizeVarAllocator
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true
from torch.utils._sympy import functions


@contextlib.contextmanager
def sizes_left_open() -> Iterator[None]:
    """Compile for sizes that vary what Inductor (torch 2.13) compiles for the example's.

    Adaptive averages, ``glu``, and gradients of convolutions, of which it asks for no more than the order of their strides. The
    order itself it compiles for, where a size of 1 makes two strides equal (``48`` and ``48 * s``), and any order is the same.

    Writes into a part of a tensor are left open too: whether that part overlaps itself is known since the model was traced.
    """
    in_order: Callable[..., list[int]] = ir.argsort_sym  # type: ignore[attr-defined]
    by_numbers: Callable[..., list[int]] = ir.argsort  # type: ignore[attr-defined]

    def by_strides(env: ShapeEnv, strides: Sequence[Any], *, reverse: bool = False) -> list[int]:
        return in_order(_SizesOfAtLeastOne(env), strides, reverse=reverse)

    def by_any_strides(strides: Sequence[Any], *, reverse: bool = False) -> list[int]:
        env = next((step.node.shape_env for step in strides if isinstance(step, torch.SymInt)), None)
        return by_numbers(strides, reverse=reverse) if env is None else by_strides(env, strides, reverse=reverse)

    pool = torch.ops.aten._adaptive_avg_pool2d.default
    gradients = torch.ops.aten.convolution_backward.default
    known_sizes, known_strides = lowering.lowerings[pool], lowering.lowerings[gradients]

    def fixed(sizes: Sequence[Any]) -> bool:
        return all(isinstance(size, (int, sympy.Integer)) for size in sizes)

    def pooled(x: Any, size: Any) -> Any:
        return (known_sizes if fixed(x.get_size()[-2:]) else lowering.fallback_adaptive_avg_pool2d)(x, size)

    def differentiated(gradient: Any, x: Any, weight: Any, *rest: Any) -> Any:
        if not fixed(weight.get_size()):
            return known_strides(gradient, x, weight, *rest)
        with mock.patch.object(SizeVarAllocator, "guard_int_seq", hints):
            return known_strides(gradient, x, weight, *rest)

    def hints(sizes: SizeVarAllocator, several: Sequence[Any]) -> list[int]:
        return [sizes.guarding_hint_or_throw(size) for size in several]

    def gated(x: Any, dim: int = -1) -> Any:
        half = functions.FloorDiv(x.get_size()[dim], 2)
        one, other = (lowering.slice_(x, dim, start, start + half, clamp=False) for start in (0, half))
        return lowering.mul(one, lowering.sigmoid(other))

    mended = {pool: pooled, gradients: differentiated, torch.ops.aten.glu.default: gated}
    with (
        mock.patch.dict(lowering.lowerings, mended),
        mock.patch.object(ir, "argsort_sym", by_strides),
        mock.patch.object(ir, "argsort", by_any_strides),
        mock.patch.object(torch, "_debug_has_internal_overlap", _overlap),
    ):
        yield


def _overlap(tensor: torch.Tensor) -> int:
    """Whether a tensor overlaps itself (1), or torch does not know (2), without a question about its sizes.

    Torch (2.13) asks first whether the tensor is dense, and so whether its sizes are below 2. The answer only refuses writes.
    """
    sized = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 if any(statically_known_true(step == 0) and statically_known_true(size > 1) for size, step in sized) else 2


class _SizesOfAtLeastOne:
    """What Inductor asks a ``ShapeEnv`` of strides, answered without guards where sizes of at least 1 decide it but for ties."""

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

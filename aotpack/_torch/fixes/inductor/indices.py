"""Fixes of indices and sizes in Inductor's code: signs, the order of dimensions, the minimum of two
sizes.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import sympy.core.cache
import torch
from torch._inductor import ir, virtualized
from torch._inductor.sizevars import SizeVarAllocator
from torch.utils._sympy import functions
from torch.utils._sympy.functions import ModularIndexing

from ...api.patching import patched, replaced
from ..applying import count_call


@contextlib.contextmanager
def keep_signs_of_indices() -> Iterator[None]:
    """Drop multiples of a modulus from a dividend only if the remaining terms are known to be
    non-negative.

    Inductor checks the signs of numbers only, and C++ division rounds towards zero.
    """
    simplify = ModularIndexing.eval.__func__  # type: ignore[attr-defined]

    def evaluate(cls: Any, base: Any, divisor: Any, modulus: Any) -> Any:
        if isinstance(base, sympy.Add) and divisor == 1 and modulus != 1:
            rest = [term for term in base.args if functions.safe_gcd(term, modulus) != modulus]
            if not all(term.is_nonnegative for term in rest):
                return None
        return simplify(cls, base, divisor, modulus)

    sympy.core.cache.clear_cache()  # it holds earlier simplifications
    try:
        with patched("inductor-negative-indices", ModularIndexing, "eval", evaluate):
            yield
    finally:
        sympy.core.cache.clear_cache()  # it holds those of the fix


@contextlib.contextmanager
def fix_argmax_index_order() -> Iterator[None]:
    """Compute the index of an extreme over several dimensions in the dimensions' own order,
    whatever the order of the loops.

    Inductor counts steps of its loops if it assumes a contiguous tensor, and may reorder the loops
    later.
    """
    create: Callable[..., Any] = ir.Reduction.create
    parameters = inspect.signature(create)

    def indexed(cls: Any, *args: Any, **kwargs: Any) -> Any:
        call = parameters.bind(*args, **kwargs).arguments
        load, sizes = call["inner_fn"], call["reduction_ranges"]

        def with_index(index: Any, reduced: Any) -> Any:
            value = load(index, reduced)
            if isinstance(value, tuple):
                return value
            position = sympy.S.Zero
            for size, one in zip(sizes, reduced, strict=True):
                position = position * size + sympy.expand(one)
            return value, virtualized.ops.index_expr(position, torch.int64)

        if call["reduction_type"] not in ("argmax", "argmin") or len(sizes) < 2:
            return create(**call)
        count_call("inductor-argmax-index-order")
        return create(**call | {"inner_fn": with_index})

    with replaced("inductor-argmax-index-order", ir.Reduction, "create", indexed):
        yield


@contextlib.contextmanager
def fix_symbolic_min_max() -> Iterator[None]:
    """Compute the minimum or maximum of two sizes at the call if it cannot be known before.

    Inductor adds a guard, or raises (``x.diag()`` of a matrix with two dynamic sizes). Or it takes
    a divisor of the other size for the smaller one, which is wrong for ``n - 3`` and 0.
    """

    def known(sizes: SizeVarAllocator, left: Any, right: Any) -> bool:
        return right == sys.maxsize or sizes.statically_known_leq(left, right)  # maxsize is the end of an open slice

    def smaller(sizes: SizeVarAllocator, left: Any, right: Any) -> Any:
        if known(sizes, left, right):
            return left
        return right if known(sizes, right, left) else functions.Min(left, right)

    def larger(sizes: SizeVarAllocator, left: Any, right: Any) -> Any:
        if known(sizes, left, right):
            return right
        return left if known(sizes, right, left) else functions.Max(left, right)

    with (
        patched("inductor-symbolic-min-max", SizeVarAllocator, "evaluate_min", smaller),
        patched("inductor-symbolic-min-max", SizeVarAllocator, "evaluate_max", larger),
    ):
        yield

"""Which loops of the generated code start threads.

In code for any number of threads, Inductor starts threads for every loop. For a loop of a few
thousand elements that takes longer than the loop. Eager starts threads from 32,768 elements on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import sympy
from torch._inductor.codegen import cpp
from torch._inductor.codegen.cpp_utils import cexpr_index
from torch._inductor.utils import sympy_product
from torch.utils._sympy.functions import CeilDiv

from ...api.patching import attribute_set, patched

_FEW = 4096
"""Iterations, each of which is one element, up to which one thread runs a loop."""

_MUCH_LONGER = 300
"""How many times longer than the outer loops an inner loop is that starts threads instead (Inductor's)."""


@contextlib.contextmanager
def loops_worth_their_threads() -> Iterator[None]:
    """Generate loops of few iterations without a parallel region. Those of sizes that vary have one if they are long.

    A loop does not start threads for each iteration of the loops around it, unless it is far
    longer than these. Inductor compares the two, but takes zero for the steps of a loop that is
    shorter than a vector. A sum over rows of 8 elements then started threads for each row
    (https://github.com/pytorch/pytorch/pull/190928).
    """
    decide: Callable[..., Any] = cpp.CppKernel.decide_parallel_depth
    most_of: Callable[..., Any] = cpp.LoopNest.max_parallel_depth
    begin: Callable[..., Any] = cpp.WorkSharing.parallel
    length: list[str] = []  # of the loops that come next, if it varies

    def decided(kernel: Any, most: Any, threads: int) -> Any:
        found = decide(kernel, most, threads)
        count = sympy_product(kernel.call_ranges)
        length[:] = [] if count.is_number else [cexpr_index(sympy_product(kernel.ranges))]
        return replace(found, parallel_depth=0) if count.is_number and count <= _FEW else found

    def parallel(region: Any, threads: int) -> None:
        write = region.code.writeline

        def conditional(line: Any) -> None:
            write(f"{line} if({length[0]} > {_FEW})" if length and str(line).startswith("#pragma omp parallel") else line)

        with attribute_set(region.code, "writeline", conditional):
            begin(region, threads)

    def most(nest: Any) -> Any:
        found = most_of(nest)
        if found.start_depth == 0:
            return found
        around = sympy_product(CeilDiv(loop.size, loop.steps) for loop in nest.loops[: found.start_depth])
        inner = nest.loops[found.start_depth]
        if isinstance(around, sympy.Integer) and around * _MUCH_LONGER < CeilDiv(inner.size, inner.steps):
            return found
        return replace(found, parallel_depth=found.start_depth, start_depth=0)

    with (
        patched("inductor-parallel-loops", cpp.CppKernel, "decide_parallel_depth", decided),
        patched("inductor-parallel-loops", cpp.LoopNest, "max_parallel_depth", most),
        patched("inductor-parallel-loops", cpp.WorkSharing, "parallel", parallel),
    ):
        yield

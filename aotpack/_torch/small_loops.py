"""Small loops run on one thread, whatever their number.

In code for any number of threads, Inductor starts threads for every loop. For a loop of a few
thousand elements that takes longer than the loop. Eager starts threads from 32,768 elements on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch._inductor.codegen import cpp
from torch._inductor.utils import sympy_product

from .api.patching import patched

_FEW = 4096
"""Iterations, each of which is one element, up to which one thread runs a loop."""


@contextlib.contextmanager
def one_thread_for_small_loops() -> Iterator[None]:
    """Generate loops of few iterations without a parallel region; those of sizes that vary keep one."""
    decide: Callable[..., Any] = cpp.CppKernel.decide_parallel_depth

    def decided(kernel: Any, most: Any, threads: int) -> Any:
        found = decide(kernel, most, threads)
        count = sympy_product(kernel.call_ranges)
        return replace(found, parallel_depth=0) if count.is_number and count <= _FEW else found

    with patched("inductor-small-loops", cpp.CppKernel, "decide_parallel_depth", decided):
        yield

"""Fixes of the loops that Inductor writes in C++: threads, tiles, vectors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import sympy
from torch._inductor import utils as inductor_utils
from torch._inductor import virtualized
from torch._inductor.codegen import cpp

from ...api.patching import hooked, patched
from ..applying import count_call


@contextlib.contextmanager
def write_for_several_threads() -> Iterator[None]:
    """Let a single thread compute the parts of a parallel region that are outside its loops.

    Inductor omits the directive for that when it compiles with one thread, even if the code may run
    with any number (``cpp.dynamic_threads``). Two threads then divide a sum in place, one after the
    other.
    """
    threads = inductor_utils.parallel_num_threads

    def several() -> int:
        return max(2, threads())

    with patched("inductor-one-thread-regions", cpp, "parallel_num_threads", several):
        yield


@contextlib.contextmanager
def index_tiles_once() -> Iterator[None]:
    """Leave an index unchanged if it already contains the position in the tile."""
    transform = cpp.CppTile2DKernel.transform_indexing

    def once(kernel: cpp.CppTile2DKernel, index: Any) -> Any:
        return index if index.has(kernel.inner_itervar()) else transform(kernel, index)

    with patched("inductor-tile-index-twice", cpp.CppTile2DKernel, "transform_indexing", once):
        yield


@contextlib.contextmanager
def write_tile_tails() -> Iterator[None]:
    """Write the rest beside whole tiles with its actual size.

    Inductor assumes that the loop directly within the outer one is the inner loop of the tile. If
    that loop is no reduction but the tile's inner loop is one, Inductor writes the rest of the
    outer loop as a whole vector.
    """
    aggregate = cpp.CppKernelProxy.aggregate_reduction_buffers

    def aggregated(proxy: cpp.CppKernelProxy, inner_is_reduction: bool, outer: Any) -> None:
        kernel = proxy.kernels[0]
        if isinstance(kernel, cpp.CppTile2DKernel):
            nest: Any = proxy.loop_nest
            first, second = (nest.loops[index] for index in kernel.tiling_indices)
            inner_is_reduction = second.is_reduction and not first.is_reduction
        aggregate(proxy, inner_is_reduction, outer)

    with patched("inductor-tile-tails", cpp.CppKernelProxy, "aggregate_reduction_buffers", aggregated):
        yield


@contextlib.contextmanager
def add_to_one_element() -> Iterator[None]:
    """Add a vector of numbers to one element: Inductor's code expects a vector of indices, or fails
    (``AssertionError``).
    """
    store: Callable[..., None] = cpp.CppVecKernel.store
    index_expr: Callable[..., Any] = cpp.CppVecOverrides.index_expr

    def as_vector(index: sympy.Expr, dtype: Any) -> Any:
        found = index_expr(index, dtype)
        value = found.value if isinstance(found, virtualized.OpsValue) else found
        return value if value.is_vec else virtualized.V.kernel.broadcast(value)

    def stored(kernel: Any, name: str, index: sympy.Expr, value: Any, mode: str | None = None) -> None:
        if mode != "atomic_add":
            return store(kernel, name, index, value, mode)
        count_call("inductor-atomic-add-one-element")
        with hooked("inductor-atomic-add-one-element", cpp.CppVecOverrides, "index_expr", staticmethod(as_vector)):
            return store(kernel, name, index, value, mode)

    with hooked("inductor-atomic-add-one-element", cpp.CppVecKernel, "store", stored):
        yield

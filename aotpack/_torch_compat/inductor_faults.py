"""Faults of Inductor (torch 2.13) that are mended while a graph is compiled: ``torch.compile`` gives wrong numbers there.

What there is to each is in tests/conformance or tests/test_cpu_target.py, as a case that fails without.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch._inductor import lowering
from torch._inductor.codegen import cpp
from torch._inductor.fx_passes import reinplace
from torch._inductor.scheduler import SchedulerNode
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .autograd import without_views
from .overlaps import meets_itself


@contextlib.contextmanager
def faults_mended() -> Iterator[None]:
    """Compile with Inductor's faults mended, but for those that concern a graph (below) or random numbers (``randomness.py``)."""
    with _tiles_indexed_once(), _pools_divided_rightly(), _copies_of_expanded(), _writes_read_after_fusion():
        yield


# ---------------------------------------------------------------- of a graph


def split_complex_numbers(module: torch.fx.GraphModule) -> None:
    """Make tensors of one complex number of two real ones: AOTInductor (torch 2.13) cannot write such a number (the gradient of
    ``fft.rfft(x).abs()`` has one).
    """
    graph, full = module.graph, torch.ops.aten.full.default
    found = [node for node in graph.find_nodes(op="call_function", target=full) if isinstance(node.args[1], complex)]
    for node in found:
        size, number, value = node.args[0], node.args[1], node.meta["val"]
        parts = []
        with graph.inserting_before(node):
            for part in (number.real, number.imag):
                options = node.kwargs | {"dtype": value.dtype.to_real()}
                parts.append(graph.call_function(full, (size, part), options))
                parts[-1].meta |= node.meta | {"val": torch.empty_like(value, dtype=value.dtype.to_real())}
            whole = graph.call_function(torch.ops.aten.complex.default, tuple(parts))
            whole.meta |= node.meta
        node.replace_all_uses_with(whole)
        graph.erase_node(node)
    if found:
        module.recompile()


_REDUCTIONS = (torch.ops.aten.amax.default, torch.ops.aten.amin.default, torch.ops.aten.max.default, torch.ops.aten.min.default)


def needs_once(node: torch.fx.Node) -> bool:
    """Whether what a node reads must be computed once for all that read it: an extreme, which is compared with what it is of."""
    return node.target in _REDUCTIONS and _is_compared(without_views(node.all_input_nodes[0]))


def _is_compared(value: torch.fx.Node) -> bool:
    """Whether a value, or a view of it, is compared for equality, or returned, so that the backward may compare it.

    It is computed once, then, for all that read it: each by itself, they would have other last bits.
    """
    return any(
        user.op == "output" or user.target is torch.ops.aten.eq.Tensor or (without_views(user) is not user and _is_compared(user))
        for user in value.users
    )


# ---------------------------------------------------------------- of Inductor


@contextlib.contextmanager
def _tiles_indexed_once() -> Iterator[None]:
    """Mend addresses in Inductor's tiles: where it adds at an indirect index (the gradient of ``x[..., [i], :]``), it counts
    the place in the tile twice (torch 2.13), and writes elsewhere. ``torch.compile`` gives wrong gradients there, or crashes.
    """
    transform = cpp.CppTile2DKernel.transform_indexing

    def once(kernel: cpp.CppTile2DKernel, index: Any) -> Any:
        return index if index.has(kernel.inner_itervar()) else transform(kernel, index)

    with mock.patch.object(cpp.CppTile2DKernel, "transform_indexing", once):
        yield


@contextlib.contextmanager
def _pools_divided_rightly() -> Iterator[None]:
    """Call ATen's kernel for gradients of average pooling whose last window may reach over the edge (``ceil_mode``).

    Inductor (torch 2.13) divides them by the size of the whole window, also where padding counts as the forward does not:
    ``torch.compile`` gives wrong gradients there. And it raises where one number stands for all dimensions (``padding=(1,)``).
    """

    def rule(inductors: Callable[..., Any], kernel: Callable[..., Any], dimensions: int) -> Callable[..., Any]:
        def lower(grad: Any, x: Any, size: Any, stride: Any, padding: Any, ceil_mode: bool, *rest: Any) -> Any:
            lists = [list(numbers) * (dimensions if len(numbers) == 1 else 1) for numbers in (size, stride, padding)]
            return (kernel if ceil_mode else inductors)(grad, x, *lists, ceil_mode, *rest)

        return lower

    kernels = {
        torch.ops.aten.avg_pool2d_backward.default: (lowering.fallback_avg_pool2d_backward, 2),
        torch.ops.aten.avg_pool3d_backward.default: (lowering.fallback_avg_pool3d_backward, 3),
    }
    rules = {operator: rule(lowering.lowerings[operator], *kernel) for operator, kernel in kernels.items()}
    with mock.patch.dict(lowering.lowerings, rules):
        yield


@contextlib.contextmanager
def _copies_of_expanded() -> Iterator[None]:
    """Let values be written into a copy of a tensor whose elements share memory (``x.expand(4, -1).index_add(0, i, y)``).

    Inductor (torch 2.13) writes into the tensor itself, if nothing else reads it, and so each value to all that share its place:
    ``torch.compile`` gives wrong results there.
    """

    def apart(operation: reinplace.InplaceableOp) -> Callable[[torch.fx.Node], bool]:
        def check(node: torch.fx.Node) -> bool:
            return operation.extra_check(node) and not _may_meet_itself(node.args[0].meta["val"])  # type: ignore[union-attr]

        return check

    known = reinplace.inplaceable_ops
    writes: list[Callable[..., Any]] = [
        torch.ops.aten.index_put.default,
        torch.ops.aten._unsafe_index_put.default,
        reinplace._generalized_scatter,
    ]
    checked = {write: replace(known[write], extra_check=apart(known[write])) for write in writes}
    with mock.patch.dict(known, checked):
        yield


def _may_meet_itself(value: torch.Tensor) -> bool:
    """Whether two elements of a tensor may be one in memory; of an expanded one, if only its size may be more than 1."""
    expanded = (n for n, step in zip(value.shape, value.stride(), strict=True) if statically_known_true(step == 0))
    return meets_itself(value) or not all(statically_known_true(n == 1) for n in expanded)


@contextlib.contextmanager
def _writes_read_after_fusion() -> Iterator[None]:
    """Have loops that are made anew, to be fused with others, still come after the writes whose results they read.

    Inductor (torch 2.13) tells what such loops read from their bodies, which name a buffer as it was before all writes, and
    forgets to put the writes' names back: where it finds another order better, they run before the write. ``torch.compile``
    gives wrong gradients there.
    """
    recompute = SchedulerNode.recompute_size_and_body

    def renamed(node: Any, *args: Any, **kwargs: Any) -> None:
        recompute(node, *args, **kwargs)
        node.set_read_writes(node.read_writes.rename(node.mutation_renames))

    with mock.patch.object(SchedulerNode, "recompute_size_and_body", renamed):
        yield

"""Orders of a graph's kernels in which memory is freed early.

Inductor estimates the peak of memory for the graph's order of kernels and for three others, and takes the lowest.
None of them runs a kernel as soon as it frees more than it allocates. Gradients of weights are such kernels: they
are the last to read saved activations. A build adds two orders, in which such kernels run early.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch._inductor import memory
from torch._inductor.virtualized import V

from ...api.patching import patched


@contextlib.contextmanager
def memory_freed_early() -> Iterator[None]:
    """Let Inductor choose from orders in which memory is freed early, too."""
    reorder: Callable[..., list[Any]] = memory.reorder_for_peak_memory

    def reordered(*args: Any) -> list[Any]:
        methods = [memory.topological_sort_lpmf, memory.topological_sort_bfs, memory.topological_sort_dfs]
        return reorder(*args, methods=[*methods, freed_early, freed_early_depth_first])

    with patched("inductor-memory-order", memory, "reorder_for_peak_memory", reordered):
        yield


def freed_early(kernels: Sequence[Any]) -> list[Any]:
    """The same order, except that kernels which free more than they allocate run as soon as they can."""
    outputs = {*V.graph.get_output_names()}
    readers = Counter(
        {buffer: len(buffer.mpi_buffer.succ_nodes) for kernel in kernels for buffer in kernel.mpi_node.pred_buffers}
    )
    missing = {kernel: len(kernel.mpi_node.pred_nodes) for kernel in kernels}
    ordered: dict[Any, None] = {}

    def frees_more(kernel: Any) -> bool:
        read = kernel.mpi_node.pred_buffers
        last_read = [buffer for buffer in read if readers[buffer] == 1 and buffer.get_name() not in outputs]
        return bool(sum(buffer.mpi_buffer.size_free for buffer in last_read) > kernel.mpi_node.size)

    for given in kernels:
        waiting = [given]
        while waiting:
            kernel = waiting.pop()
            if kernel in ordered or missing[kernel] or not (kernel is given or frees_more(kernel)):
                continue
            ordered[kernel] = None
            readers.subtract(kernel.mpi_node.pred_buffers)
            missing.update({reader: missing[reader] - 1 for reader in kernel.mpi_node.succ_nodes})
            last = [
                reader
                for buffer in kernel.mpi_node.pred_buffers
                if readers[buffer] == 1
                for reader in buffer.mpi_buffer.succ_nodes
            ]
            waiting += [*last, *kernel.mpi_node.succ_nodes]
    return [*ordered]


def freed_early_depth_first(kernels: list[Any]) -> list[Any]:
    """As :func:`freed_early`, from torch's depth-first order."""
    return freed_early(memory.topological_sort_dfs(kernels))

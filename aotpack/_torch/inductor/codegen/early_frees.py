"""Large buffers are freed after the loop that reads them last.

Inductor writes consecutive loops as one function, and frees what they read after that function. So the memory of a chain
of loops is that of all their results. The function ends here when the buffers are large.

Inductor also holds a buffer for a later result of its size, if by its estimate that does not raise the peak. The estimate
counts what is written in place, and saved views of one tensor, several times. So large buffers are not held.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch._inductor import ir
from torch._inductor.codegen import cpp, wrapper
from torch._inductor.virtualized import V

from ...api.patching import patched

_BYTES: Final = 2**16
"""The size from which on a buffer is large. To call a function, or to allocate a buffer, takes less than writing that much."""


@contextlib.contextmanager
def buffers_freed_early() -> Iterator[None]:
    """End a function of generated code when 64 KiB or more can be freed, and hold no buffer of that size for a later result."""
    ready: Callable[..., bool] = cpp.CppScheduling.ready_to_flush
    reuses: Callable[..., bool] = wrapper.AllocateLine.should_reuse_buffer

    def ready_to_flush(scheduling: Any) -> bool:
        return ready(scheduling) or _bytes_to_free() >= _BYTES

    def should_reuse_buffer(allocation: Any, free: Any, size: int) -> bool:
        is_held = allocation.scheduler_node_index - free.scheduler_node_index > 1
        return reuses(allocation, free, size) and not (is_held and size >= _BYTES)

    with (
        patched("inductor-early-frees", cpp.CppScheduling, "ready_to_flush", ready_to_flush),
        patched("inductor-early-frees", wrapper.AllocateLine, "should_reuse_buffer", should_reuse_buffer),
    ):
        yield


def _bytes_to_free() -> int:
    """The bytes of buffers and donated inputs that no later loop reads, and that are not freed yet."""
    graph = V.graph
    last_read = graph.scheduler.buffer_names_to_free - graph.removed_buffers - graph.wrapper_code.freed
    buffers = [graph.scheduler.name_to_buf[name] for name in last_read if name in graph.scheduler.name_to_buf]
    inputs = [graph.graph_inputs_original[name] for name in last_read if name in graph.graph_inputs_original]
    values = [buffer.node for buffer in buffers if buffer.can_free() and buffer.node.has_tensor_output()]
    values += [value for value in inputs if isinstance(value, ir.DonatedBuffer)]
    return sum(graph.sizevars.optimization_hint(value.get_numel()) * value.get_dtype().itemsize for value in values)

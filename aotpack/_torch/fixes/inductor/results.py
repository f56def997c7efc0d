"""Fixes of compiled code that returns one tensor, or one memory, for several results."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch._inductor import ir, virtualized
from torch._inductor.graph import GraphLowering, SubgraphLowering

from ...api.nodes import without_views
from ...api.patching import replaced
from ..applying import count_call


@contextlib.contextmanager
def copy_shared_results(module: torch.fx.GraphModule, saved: Collection[int]) -> Iterator[None]:
    """Copy results that share memory with an input or another result although they do not in the
    graph.

    Inductor drops operations that change no values, and checks the memory of results only in the
    simplest cases. Outputs that are ``saved`` for a backward may share memory with a result.
    """
    memory = _memory_of_results(module.graph)
    finalize = GraphLowering.finalize

    def finalized(lowering: GraphLowering) -> None:
        if not isinstance(lowering, SubgraphLowering):
            _copy_shared(lowering.graph_outputs, memory, saved)
        finalize(lowering)

    with replaced("inductor-results-share-memory", GraphLowering, "finalize", finalized):
        yield


def _copy_shared(outputs: list[Any], before: Sequence[torch.fx.Node | None], saved: Collection[int]) -> None:
    """Replace outputs that share memory by copies; ``before``: for each output, the node whose
    memory it is in, in the graph.
    """
    owners: dict[str, int] = {}
    for position in sorted(range(len(outputs)), key=lambda position: position in saved):  # results first
        earlier, value = before[position], outputs[position]
        if earlier is None or not isinstance(value, (ir.TensorBox, ir.StorageBox, ir.BaseView)):
            continue
        buffer = buffer_of(value)
        memory = str(value.get_name() if buffer is None else buffer.get_name())
        owner = owners.setdefault(memory, position)
        of_input = memory in virtualized.V.graph.graph_inputs and earlier.op != "placeholder"
        if of_input or not (before[owner] is earlier or owner in saved):
            count_call("inductor-results-share-memory")
            copy: ir.IRNode = ir.ExternKernel.copy_input(value)
            if value.get_size():
                copy = ir.ExternKernel.require_exact_strides(copy, value.get_stride())
            outputs[position] = ir.ExternKernel.realize_input(copy)


def _memory_of_results(graph: torch.fx.Graph) -> list[torch.fx.Node | None]:
    """For each output, the node that it is a view of, or the output's own node."""
    outputs: Any = graph.output_node().args[0]
    return [_in_memory_of(value) if isinstance(value, torch.fx.Node) else None for value in outputs]


def _in_memory_of(node: torch.fx.Node) -> torch.fx.Node:
    """The node that a node is or may be a view of, through multi-output views and reshapes too."""
    whole = without_views(node)
    while whole.target in (torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default) or (
        whole.target is operator.getitem and getattr(whole.all_input_nodes[0].target, "is_view", False)
    ):
        whole = without_views(whole.all_input_nodes[0])
    return whole


def buffer_of(value: Any) -> Any:
    """The outermost buffer that holds a value; inputs of a concatenation are stored inside its
    buffer.

    Null if there is no buffer by the value's name.
    """
    buffer = virtualized.V.graph.try_get_buffer(value.get_name())
    while isinstance(buffer, ir.Buffer) and isinstance(buffer.layout, ir.NonOwningLayout):
        buffer = virtualized.V.graph.try_get_buffer(buffer.layout.view.get_name())
    return buffer

"""Records the user's source lines for the nodes of a joint graph."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor

from ... import origin
from .counting import counted
from .patching import hooked


@contextlib.contextmanager
def recorded_lines(entry: str) -> Iterator[None]:
    """While a model is traced directly to a joint graph, give nodes the source lines that run below
    our function ``entry``.
    """
    tracer: Any = proxy_tensor.PythonKeyTracer
    initialise = proxy_tensor._MakefxTracer.__init__

    def recording(made: Any, *args: Any, **kwargs: Any) -> None:
        initialise(made, *args, **kwargs)
        made.record_stack_traces = True

    def chosen(_: Any, frames: traceback.StackSummary) -> traceback.StackSummary:
        starts = [i for i, frame in enumerate(frames) if frame.name == entry and origin.is_ours(frame.filename)]
        below = frames[starts[-1] :] if starts else []
        return traceback.StackSummary.from_list([frame for frame in below if origin.is_model(frame.filename)])

    with (
        hooked("aot-lines", proxy_tensor._MakefxTracer, "__init__", counted("aot-lines", recording)),
        hooked("aot-lines", tracer, "_filter_traceback_frames", chosen),
    ):
        yield


def name_backward(graph: torch.fx.Graph) -> None:
    """Give backward nodes without a source line that of their forward node, which has the same
    autograd sequence number.

    Sums of gradients have no sequence number; they get the source line of one of their inputs.
    """
    lines: dict[Any, str] = {}
    for node in graph.nodes:
        trace, number = node.meta.get("stack_trace"), node.meta.get("seq_nr")
        if trace and node.meta.get("partitioner_tag") != "is_backward":
            lines.setdefault(number, trace)
        elif not trace and node.op == "call_function":
            known = (source.meta.get("stack_trace") for source in node.all_input_nodes)
            node.meta["stack_trace"] = lines.get(number) or next(filter(None, known), None)

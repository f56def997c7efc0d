"""Writes of hooks and custom backwards: to the incoming gradient and to buffers, which a bundle does too. Others are refused.

AOTAutograd keeps such a write in the joint graph, as a copy into the input. Graphs of a bundle are
pure. The backward graph returns the new value of a tangent or buffer, and the loader writes it to
the tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from aotpack_loader.errors import Problem, UnsupportedError

from .._torch.api.backward_writers import runs_in_writer
from .._torch.api.random_operators import in_backward
from .._torch.api.torch_types import desc
from .._torch.tracing import aot_autograd
from ..graph import computed_from, source_line, views


def without_writes(joint: aot_autograd.Joint) -> aot_autograd.Joint:
    """Return the joint graph without writes.

    :attr:`Joint.tangent_writes` lists the written tangents, and :attr:`Joint.state_writes` the
    written buffers.

    Raises:
        UnsupportedError: names the lines that write to an argument or parameter, or to a buffer
            that forward writes to as well.
    """
    graph = joint.graph_module.graph
    if written := joint.written_in_backward.keys() & {*joint.metadata.mutated_inp_runtime_indices}:
        # AOTAutograd takes what the backward writes for the forward's own new value.
        names = ", ".join(repr(getattr(joint.primal_descriptors[i], "target", f"argument {i}")) for i in sorted(written))
        first = next((node for node in graph.nodes if runs_in_writer(node)), None)
        raise _refused([] if first is None else [first], f"{names}, which forward writes to,", "it as well")
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    writes: list[Node] = [node for node in copies if node.args[0].op == "placeholder"]
    if not writes:
        return joint
    if joint.gradient_metas is not None:
        raise _refused(writes, "a gradient or buffer, beside tensor subclasses", "its argument grad_output, or to state")
    tangents = _tangents(joint)
    of_state = [node for node in writes if node.args[0] not in tangents]
    joint = _with_tangent_writes(joint, tangents, [node for node in writes if node.args[0] in tangents])
    return _with_state_writes(joint, tangents, of_state)


def _with_tangent_writes(joint: aot_autograd.Joint, tangents: Sequence[Node], writes: Sequence[Node]) -> aot_autograd.Joint:
    written = [tangents.index(node.args[0]) for node in writes]
    for node in writes:
        node.replace_all_uses_with(node.args[1])  # type: ignore[arg-type]
    _return_values(joint, writes)
    return dataclasses.replace(joint, tangent_writes=tuple(written))


def _with_state_writes(joint: aot_autograd.Joint, tangents: Sequence[Node], writes: Sequence[Node]) -> aot_autograd.Joint:
    """Let the backward take the buffers that it writes to, because they may have changed since the forward.

    Their values at the time of the forward are still saved for autograd's own formulas.
    """
    graph = joint.graph_module.graph
    primals: list[Node] = graph.find_nodes(op="placeholder")[joint.tokens :]
    last = tangents[-1] if tangents else primals[-1]
    inside: set[Node] = set()  # what is traced in the writers, and what is computed from that
    for node in graph.nodes:
        if runs_in_writer(node) or not inside.isdisjoint(node.all_input_nodes):
            inside.add(node)
    found = {}
    for write in writes:
        primal: Any = write.args[0]
        number = primals.index(primal)
        writers = joint.written_in_backward.get(number)
        is_buffer = isinstance(joint.primal_descriptors[number], desc.BufferAOTInput) and not joint.synthetic_bases
        if not writers or not is_buffer:
            raise _refused([write], "an argument, parameter or buffer", "what the model was called with, or its state")
        with graph.inserting_after(last):
            last = graph.placeholder(f"tangents_state_{number}")
        last.meta = {**primal.meta, "val": primal.meta["val"].clone()}
        computing = computed_from([write.args[1]])
        if any(node is not primal and not in_backward(node) and views.root(node) is primal for node in computing):
            raise _refused([write], "a view of a buffer that forward has made", "it")
        for node in list(primal.users):
            if runs_in_writer(node) or (node in computing and node in inside):
                node.replace_input_with(primal, last)
        found[number] = writers
    _return_values(joint, writes)
    return dataclasses.replace(joint, state_writes=found)


def _return_values(joint: aot_autograd.Joint, writes: Sequence[Node]) -> None:
    """Return the written values last, and drop the writes."""
    graph = joint.graph_module.graph
    output = graph.output_node()
    end = joint.outputs.backward_values.stop
    outputs, descriptors = list(output.args[0]), list(output.meta["desc"])  # type: ignore[arg-type]
    outputs[end:end] = [node.args[1] for node in writes]
    descriptors[end:end] = [descriptors[end - 1]] * len(writes)
    output.args, output.meta["desc"] = (tuple(outputs),), descriptors
    for node in writes:
        graph.erase_node(node)
    joint.graph_module.recompile()


def _tangents(joint: aot_autograd.Joint) -> list[Node]:
    """The placeholders of the tangents, in order."""
    placeholders: list[Node] = joint.graph_module.graph.find_nodes(op="placeholder")
    after = placeholders[joint.tokens + len(joint.primal_descriptors) :]
    return [node for node in after if not node.name.startswith("tangents_token")]


def _refused(writes: list[Node], what: str, which: str) -> UnsupportedError:
    values = [node.args[1] if node.target is torch.ops.aten.copy_.default else node for node in writes]
    lines = dict.fromkeys(source_line(value) or "the model" for value in values if isinstance(value, Node))
    return UnsupportedError(
        f"The model writes to {what} in its backward: in a hook of a gradient, or in an autograd.Function.",
        [Problem(line, f"a backward that starts here writes in place to {which}") for line in lines],
        hint="Write to a copy (x = ctx.saved_tensors[0].clone()), and update state in forward. "
        "A buffer that forward does not write to may be updated by a hook, or by the backward of an autograd.Function.",
    )

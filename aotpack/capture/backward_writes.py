"""Writes of a custom backward: to its incoming gradient, which a bundle does too, and to inputs, which it refuses.

AOTAutograd keeps such a write in the joint graph, as a copy into the input. Graphs of a bundle are
pure. The backward graph returns the new value of a tangent, and the loader writes it to the
caller's tensor.
"""

from __future__ import annotations

import dataclasses

import torch
from torch.fx import Node

from aotpack_loader.errors import Problem, UnsupportedError

from .._torch.tracing import aot_autograd
from ..graph import source_line


def with_tangent_writes(joint: aot_autograd.Joint) -> aot_autograd.Joint:
    """Return the joint graph without writes. :attr:`Joint.tangent_writes` lists the written tangents.

    Raises:
        UnsupportedError: names the lines that write to an argument, parameter or buffer.
    """
    graph = joint.graph_module.graph
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    writes: list[Node] = [node for node in copies if node.args[0].op == "placeholder"]
    if not writes:
        return joint
    tangents = _tangents(joint)
    of_inputs = [node for node in writes if node.args[0] not in tangents]
    if of_inputs:
        raise _refused(of_inputs, "an argument, parameter or buffer", "what the model was called with, or its state")
    if joint.gradient_metas is not None:
        raise _refused(writes, "a gradient, beside tensor subclasses", "its argument grad_output")
    output = graph.output_node()
    outputs, descriptors = list(output.args[0]), list(output.meta["desc"])  # type: ignore[arg-type]
    end = joint.outputs.backward_values.stop
    values = {tangents.index(node.args[0]): node.args[1] for node in writes}  # type: ignore[arg-type]
    for node in writes:
        node.replace_all_uses_with(node.args[1])  # type: ignore[arg-type]
        graph.erase_node(node)
    for i, value in enumerate(values.values()):
        outputs.insert(end + i, value)
        descriptors.insert(end + i, descriptors[end - 1])
    output.args = (tuple(outputs),)
    output.meta["desc"] = descriptors
    joint.graph_module.recompile()
    return dataclasses.replace(joint, tangent_writes=tuple(values))


def _tangents(joint: aot_autograd.Joint) -> list[Node]:
    """The placeholders of the tangents, in order."""
    placeholders: list[Node] = joint.graph_module.graph.find_nodes(op="placeholder")
    after = placeholders[joint.tokens + len(joint.primal_descriptors) :]
    return [node for node in after if not node.name.startswith("tangents_token")]


def _refused(writes: list[Node], what: str, which: str) -> UnsupportedError:
    values = [node.args[1] for node in writes]
    lines = dict.fromkeys(source_line(value) or "the model" for value in values if isinstance(value, Node))
    return UnsupportedError(
        f"The model writes to {what} in its backward: in a hook of a gradient, or in an autograd.Function.",
        [Problem(line, f"a backward that starts here writes in place to {which}") for line in lines],
        hint="Write to a copy (x = ctx.saved_tensors[0].clone()), and update state in forward. "
        "For statistics of a gradient, return the tensor: its caller can register the hook.",
    )

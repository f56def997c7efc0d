"""Fixes of the derivatives of scans."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ...api.nodes import view_of_copy
from ...api.patching import patched

_SCANS = importlib.import_module("torch._higher_order_ops.scan")  # its package has a function of that name


@contextlib.contextmanager
def make_scans_traceable() -> Iterator[None]:
    """Make scans traceable whose backward needs a result of the step, or a size that varies.

    Torch returns such a result twice, and then rejects the alias that it made itself. It stacks a size as if it were a
    tensor. It also keeps a copy of each transposed weight for every step.
    """
    implementation: Any = _SCANS.ScanAutogradImpl
    original: Callable[[Any], None] = implementation._optimize_forward_intermediates

    def optimized(self: Any) -> None:
        _save_operands_themselves(self)
        _read_sizes_of_tensors(self)
        original(self)
        forward = self.hop_partitioned_graph.fw_gm
        output = forward.graph.output_node()
        results: list[torch.fx.Node] = []
        for result in output.args[0]:
            results.append(self._insert_clone(result, output) if result in results else result)
        output.args = (tuple(results),)
        forward.recompile()

    with patched("aot-scan-returns-a-result-twice", implementation, "_optimize_forward_intermediates", optimized):
        yield


def _save_operands_themselves(scan: Any) -> None:
    """Keep an operand that is the same in all steps once, where the backward needs a copy of it or of its transpose.

    The backward makes the copy. What the forward returns beside the step's results is stacked over all steps.
    """
    parts, first = scan.hop_partitioned_graph, len(scan.init) + len(scan.xs)
    output = parts.fw_gm.graph.output_node()
    results = list(output.args[0])
    same = set(parts.fw_gm.graph.find_nodes(op="placeholder")[first:])
    operands = parts.bw_gm.graph.find_nodes(op="placeholder")
    for i, (result, operand) in enumerate(zip(results[parts.n_fw_outputs :], operands, strict=False)):
        source, steps = _source_of_copies(result)
        if source not in same or not steps:
            continue
        results[parts.n_fw_outputs + i] = source
        operand.meta["val"] = source.meta["val"]
        made, users = operand, list(operand.users)
        for step in reversed(steps):
            with parts.bw_gm.graph.inserting_after(made):
                made = parts.bw_gm.graph.call_function(step.target, (made, *step.args[1:]), step.kwargs)
            made.meta = dict(step.meta)
        for user in users:
            user.replace_input_with(operand, made)
    output.args = (tuple(results),)
    parts.fw_gm.recompile()
    parts.bw_gm.recompile()


def _read_sizes_of_tensors(scan: Any) -> None:
    """Let the backward read a size from a tensor that it is given, in place of a number that each step returns."""
    parts = scan.hop_partitioned_graph
    output, graph = parts.fw_gm.graph.output_node(), parts.bw_gm.graph
    results, operands = output.args[0], graph.find_nodes(op="placeholder")
    kept = list(results[: parts.n_fw_outputs])
    for result, operand in zip(results[parts.n_fw_outputs :], operands, strict=False):
        places = [(x, dim) for x in operands for dim, size in enumerate(_shape(x)) if _is_same(size, operand.meta["val"])]
        if result.op == "placeholder" or not places:
            kept.append(result)
            continue
        with graph.inserting_before(operands[-1].next):
            size = graph.call_function(torch.ops.aten.sym_size.int, places[0])
        size.meta["val"] = operand.meta["val"]
        operand.replace_all_uses_with(size)
        graph.erase_node(operand)
    output.args, parts.n_intermediates = (tuple(kept),), len(kept) - parts.n_fw_outputs
    parts.fw_gm.recompile()
    parts.bw_gm.recompile()


def _shape(node: torch.fx.Node) -> Sequence[Any]:
    value = node.meta["val"]
    return value.shape if isinstance(value, torch.Tensor) else ()


def _is_same(size: Any, number: Any) -> bool:
    """Whether a size of a tensor and a number are one symbol."""
    return isinstance(size, torch.SymInt) and isinstance(number, torch.SymInt) and bool(size.node.expr == number.node.expr)


def _source_of_copies(node: torch.fx.Node) -> tuple[torch.fx.Node, list[torch.fx.Node]]:
    """The value of which ``node`` is a copied view, and the steps back to it."""
    steps: list[torch.fx.Node] = []
    while view_of_copy(node.target) is not None and len(node.all_input_nodes) == 1:
        steps.append(node)
        node = node.all_input_nodes[0]
    return node, steps

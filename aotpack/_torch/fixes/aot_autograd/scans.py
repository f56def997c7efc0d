"""Fixes of the derivatives of scans."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...api.nodes import view_of_copy
from ...api.patching import patched

_SCANS = importlib.import_module("torch._higher_order_ops.scan")  # its package has a function of that name


@contextlib.contextmanager
def make_scans_traceable() -> Iterator[None]:
    """Make scans traceable whose backward needs a result of the step.

    Torch returns such a result twice, and then rejects the alias that it made itself. It also keeps a
    copy of each transposed weight for every step.
    """
    implementation: Any = _SCANS.ScanAutogradImpl
    original: Callable[[Any], None] = implementation._optimize_forward_intermediates

    def optimized(self: Any) -> None:
        _save_operands_themselves(self)
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


def _source_of_copies(node: torch.fx.Node) -> tuple[torch.fx.Node, list[torch.fx.Node]]:
    """The value of which ``node`` is a copied view, and the steps back to it."""
    steps: list[torch.fx.Node] = []
    while view_of_copy(node.target) is not None and len(node.all_input_nodes) == 1:
        steps.append(node)
        node = node.all_input_nodes[0]
    return node, steps

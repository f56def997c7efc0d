"""Fixes of scans, which Inductor turns into while loops."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch._inductor.fx_passes import post_grad
from torch.fx import GraphModule, Node

from ...api.patching import patched

_ID = "inductor-sizes-of-scans"


@contextlib.contextmanager
def pass_sizes_to_scans() -> Iterator[None]:
    """Give a scan the sizes that its results have as operands.

    Inductor allocates the results before the loop. It knows the length, and otherwise only sizes that are operands. Dynamo
    makes them operands; AOTAutograd, which traces gradients and our own scans, does not.
    """
    decompose = post_grad.decompose_scan_to_while_loop

    def with_sizes(module: GraphModule) -> None:
        for scan in module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.scan):
            _add_sizes(module, scan)
        decompose(module)

    with patched(_ID, post_grad, "decompose_scan_to_while_loop", with_sizes):
        yield


def _add_sizes(module: GraphModule, scan: Node) -> None:
    step, init, rows, additional = scan.args
    operands = [node for node in scan.all_input_nodes if node is not step]
    needed = {symbol for value in scan.meta["val"][len(init) :] for symbol in _symbols(value)}  # type: ignore[arg-type]
    given = {expression for node in operands if (expression := _expression(node.meta["val"])) is not None}
    sources = [*operands, *module.graph.find_nodes(op="placeholder")]
    sizes = []
    for symbol in sorted(needed - given, key=str):
        found = next(((node, dim) for node in sources for dim, size in _sizes(node) if _expression(size) == symbol), None)
        if found is not None:
            node, dim = found
            with module.graph.inserting_before(scan):
                size = module.graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
            size.meta["val"] = node.meta["val"].shape[dim]
            sizes.append(size)
    if not sizes:
        return
    inner = getattr(module, str(step.target))  # type: ignore[union-attr]
    last = inner.graph.find_nodes(op="placeholder")[-1]
    for number, size in reversed([*enumerate(sizes)]):
        with inner.graph.inserting_after(last):
            operand = inner.graph.placeholder(f"size_{number}")
        operand.meta["val"] = size.meta["val"]
    inner.recompile()
    scan.args = (step, init, rows, (*additional, *sizes))  # type: ignore[misc]


def _sizes(node: Node) -> list[tuple[int, Any]]:
    value = node.meta.get("val")
    return [*enumerate(value.shape)] if isinstance(value, torch.Tensor) else []


def _expression(size: Any) -> sympy.Expr | None:
    return size.node.expr if isinstance(size, torch.SymInt) else None


def _symbols(value: torch.Tensor) -> set[sympy.Symbol]:
    sizes = [size for size in (*value.shape, *value.stride()) if isinstance(size, torch.SymInt)]
    return {symbol for size in sizes for symbol in size.node.expr.free_symbols}

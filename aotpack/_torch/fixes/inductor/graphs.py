"""Fixes that change the graph before Inductor compiles it: other operators, or values that are
computed only once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._inductor.graph import GraphLowering, SubgraphLowering

from ...api.nodes import without_views
from ...api.patching import replaced
from ..applying import count_call

_aten = torch.ops.aten
_OF_TENSORS = {getattr(_aten, name).Scalar: getattr(_aten, name).Tensor for name in ("add", "sub", "mul", "div", "eq", "ne")}


def pass_complex_numbers_as_tensors(module: torch.fx.GraphModule) -> None:
    """Pass complex numbers to operators as tensors; for operators on complex tensors, pass all
    numbers as tensors.

    AOTInductor cannot write complex numbers in a call (``x * 1j``, gradients of ``polar``). With
    complex tensors it treats other numbers as ``float64``, or fails (``x / 2.5``).
    """
    graph = module.graph
    pending = [*reversed(graph.nodes)]
    while pending:
        node = pending.pop()
        found = node.meta.get("val")
        if not isinstance(node.target, torch._ops.OpOverload) or not isinstance(found, torch.Tensor):
            continue
        if isinstance(alpha := node.kwargs.get("alpha"), complex) and node.target in (_aten.add.Tensor, _aten.sub.Tensor):
            with graph.inserting_before(node):
                scaled = graph.call_function(_aten.mul.Tensor, (node.args[1], alpha))
            scaled.meta |= node.meta | {"val": found.new_empty(node.args[1].meta["val"].shape)}
            node.args, node.kwargs = (node.args[0], scaled), {}
            pending.append(scaled)
        declared = node.target._schema.arguments
        kinds = (int, float, complex) if found.is_complex() else complex
        for index, (value, argument) in enumerate(zip(node.args, declared, strict=False)):
            takes_tensor = isinstance(argument.type, torch.TensorType)
            if isinstance(value, kinds) and (takes_tensor or (isinstance(value, complex) and node.target in _OF_TENSORS)):
                count_call("inductor-numbers-beside-complex")
                kind = found.dtype if found.is_complex() else torch.result_type(node.args[0].meta["val"], value)
                whole = found.new_empty((), dtype=kind)
                with graph.inserting_before(node):
                    made = graph.call_function(_aten.full.default, ((), value), {"dtype": whole.dtype, "device": whole.device})
                made.meta |= node.meta | {"val": whole}
                node.update_arg(index, made)
                node.target = _OF_TENSORS.get(node.target, node.target)
    module.recompile()


def split_complex_numbers(module: torch.fx.GraphModule) -> None:
    """Build tensors filled with a complex number from two real ones: AOTInductor cannot write such
    a number.
    """
    graph, full = module.graph, torch.ops.aten.full.default
    targets = (full, torch.ops.aten.scalar_tensor.default)
    nodes = (node for target in targets for node in graph.find_nodes(op="call_function", target=target))
    found = [node for node in nodes if node.meta["val"].is_complex()]
    for node in found:
        count_call("inductor-full-of-complex")
        size, number, value = (*((), *node.args)[-2:], node.meta["val"])
        parts = []
        with graph.inserting_before(node):
            # A number that the graph computes is real.
            for part in (number, 0.0) if isinstance(number, torch.fx.Node) else (number.real, number.imag):
                options = node.kwargs | {"dtype": value.dtype.to_real()}
                parts.append(graph.call_function(full, (size, part), options))
                parts[-1].meta |= node.meta | {"val": torch.empty_like(value, dtype=value.dtype.to_real())}
            whole = graph.call_function(torch.ops.aten.complex.default, tuple(parts))
            whole.meta |= node.meta
        node.replace_all_uses_with(whole)
        graph.erase_node(node)
    if found:
        module.recompile()


_REDUCED_AS = {
    **dict.fromkeys((_aten.amax.default, _aten.amin.default, _aten.argmax.default, _aten.argmin.default), torch.int32),
    **dict.fromkeys((_aten.max.default, _aten.max.dim, _aten.min.default, _aten.min.dim), torch.int32),
    **dict.fromkeys((_aten.any.default, _aten.any.dim, _aten.any.dims), torch.bool),
}
"""Maps reductions of bytes to the dtype that bytes are converted to."""


def reduce_bytes_as_numbers(module: torch.fx.GraphModule) -> None:
    """Compute extremes of bytes (``int8``, ``uint8``) in ``int32``, and ``any`` of bytes in
    ``bool``.

    Inductor also reduces the vector lanes that hold no bytes and are zero. Its ``any`` returns
    booleans where eager's returns ``uint8``.
    """
    graph, convert = module.graph, torch.ops.prims.convert_element_type.default

    def converted(value: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
        made = graph.call_function(convert, (value, dtype))
        made.meta |= value.meta | {"val": value.meta["val"].to(dtype)}
        return made

    found = [
        node for node in graph.nodes if node.target in _REDUCED_AS and node.args[0].meta["val"].dtype in (torch.int8, torch.uint8)
    ]
    for node in found:
        count_call("inductor-extremes-of-bytes")
        dtype = _REDUCED_AS[node.target]
        with graph.inserting_before(node):
            node.update_arg(0, converted(node.args[0], dtype))
        whole = node.meta["val"]
        values = [node] if isinstance(whole, torch.Tensor) else [user for user in node.users if user.args[1] == 0]
        for value in values:
            expected = value.meta["val"].dtype
            if expected not in (dtype, torch.int64):  # an index is no value
                value.meta["val"] = value.meta["val"].to(dtype)
                with graph.inserting_after(value):
                    again = converted(value, expected)
                value.replace_all_uses_with(again, delete_user_cb=lambda user, own=again: user is not own)
        if not isinstance(whole, torch.Tensor):
            node.meta["val"] = (whole[0].to(dtype), whole[1])
    if found:
        module.recompile()


def add_bytes_as_numbers(module: torch.fx.GraphModule) -> None:
    """Compute sums and products in bytes (``dtype=torch.int8``) in ``int64``, and keep the last byte.

    Inductor also adds the vector lanes that hold no bytes. They hold what was computed of zeros.
    """
    graph, convert, fix = module.graph, torch.ops.prims.convert_element_type.default, "inductor-sums-of-bytes"
    found = [node for node in graph.nodes if node.target in _SUMS and node.meta["val"].dtype in (torch.int8, torch.uint8)]
    for node in found:
        count_call(fix)
        x, whole = node.args[0], node.meta["val"]
        if x.meta["val"].dtype != whole.dtype:
            with graph.inserting_before(node):
                in_bytes = graph.call_function(convert, (x, whole.dtype))
            in_bytes.meta |= x.meta | {"val": x.meta["val"].to(whole.dtype)}
            node.update_arg(0, in_bytes)
        node.update_kwarg("dtype", torch.int64)
        node.meta["val"] = whole.to(torch.int64)
        with graph.inserting_after(node):
            last = graph.call_function(convert, (node, whole.dtype))
        last.meta |= node.meta | {"val": whole}
        node.replace_all_uses_with(last, delete_user_cb=lambda user, own=last: user is not own)
    if found:
        module.recompile()


_SUMS = {_aten.sum.default, _aten.sum.dim_IntList, _aten.prod.default, _aten.prod.dim_int}

_EXTREMES: dict[Any, Sequence[int]] = {
    **dict.fromkeys((_aten.amax.default, _aten.amin.default, _aten.max.default, _aten.min.default), (0,)),
    **dict.fromkeys((_aten.scatter_reduce.two, _aten.index_reduce.default), (0, 3)),
}
"""Maps operators that return extremes to the indices of the arguments that the extremes are taken
of.
"""


@contextlib.contextmanager
def compute_extremes_once() -> Iterator[None]:
    """Compute the input of an extreme only once for all readers: the backward compares it with the
    extreme for equality.

    Inductor may compute it once vectorized and once as a scalar, and the last bits differ. Then no
    element equals the extreme.
    """
    run = GraphLowering.run_node

    def run_node(lowering: GraphLowering, node: torch.fx.Node) -> Any:
        if not isinstance(lowering, SubgraphLowering):
            for value in _compared_values(node):
                count_call("inductor-extremes-computed-twice")
                lowering.env[value].realize()
        return run(lowering, node)

    with replaced("inductor-extremes-computed-twice", GraphLowering, "run_node", run_node):
        yield


def _compared_values(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The inputs of an extreme that are also compared for equality."""
    values = [node.args[i] for i in _EXTREMES.get(node.target, ())]
    return [value for value in values if isinstance(value, torch.fx.Node) and _is_compared(without_views(value))]


def _is_compared(value: torch.fx.Node) -> bool:
    """Whether a value or a view of it is compared for equality, or is returned, so that the
    backward may compare it.
    """
    return any(
        user.op == "output" or user.target is torch.ops.aten.eq.Tensor or (without_views(user) is not user and _is_compared(user))
        for user in value.users
    )

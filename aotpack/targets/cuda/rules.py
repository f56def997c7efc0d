"""What the CUDA target computes in another way than the graphs say, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from aotpack_loader.errors import Problem, UnsupportedError

from ...graph import source_line
from .. import attention
from ..base import GraphToCompile

_aten = torch.ops.aten


_POSITIONS_FIRST: Final = (0, 2, 1, 3)
"""The order of dimensions in memory in which torch's operators for the CPU write all results but attention itself."""


def _attention(query: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention whose results lie in memory as those of torch's operator: the first as the query does."""
    result, logsumexp = attention.attention(query, *args, **kwargs)
    strides: Any = query.stride()
    order = sorted(range(4), key=lambda dim: (-strides[dim], dim))
    return _laid_out(result, order), _laid_out(logsumexp, _POSITIONS_FIRST[:3])


def _attention_backward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    return tuple(_laid_out(each, _POSITIONS_FIRST) for each in attention.attention_backward(*args, **kwargs))


def _laid_out(x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A tensor whose dimensions have this order in memory."""
    return x.permute(*order).contiguous().permute(*(order.index(dim) for dim in range(x.dim())))


ATTENTION: Final[Mapping[Any, Any]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
}
"""A trace on the CPU takes torch's operator for the CPU. Which of those for GPUs eager takes depends on the device."""

_OF_PROCESSORS: Final = ("mkldnn", "_for_cpu", "fbgemm", "quantized")
"""Parts of the names of operators that GPUs do not have."""
_REGION: Final = torch.ops.higher_order.invoke_subgraph


def refuse_unsupported(graphs: Sequence[GraphToCompile]) -> None:
    """Reject graphs with what this target does not compile.

    Raises:
        UnsupportedError: says what, and the model's lines.
    """
    found: dict[tuple[str, str], None] = {}
    for item, node in _nodes(graphs):
        if reason := _refusal(node):
            found[source_line(node) or item.key, f"{node.target}: {reason}"] = None
    if found:
        raise UnsupportedError(
            "The cuda target cannot compile what this model uses.",
            [Problem(where, what) for where, what in sorted(found)][:10],
            hint='Build with targets=("portable",): such a bundle runs on a GPU, too, without native code.',
        )


def _refusal(node: Node) -> str:
    target = node.target
    if node.op == "get_attr" or node.op == "call_module":
        value = getattr(node.graph.owning_module, str(target), None)
        return "" if isinstance(value, GraphModule) else "constants of a graph are not moved to a GPU"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return "" if target is _REGION else "control flow"
    if not isinstance(target, torch._ops.OpOverload) or target in ATTENTION:
        return ""
    name = target.name()
    if target.namespace == "aotpack":
        return "the state of a GPU's random numbers has another form than the CPU's"
    if target.namespace not in ("aten", "prims", "prim"):
        return "operators of others are not compiled for GPUs"
    return "only processors have it" if any(part in name for part in _OF_PROCESSORS) else ""


def _nodes(graphs: Sequence[GraphToCompile]) -> Iterator[tuple[GraphToCompile, Node]]:
    modules = ((item, module) for item in graphs for module in item.module.modules() if isinstance(module, GraphModule))
    return ((item, node) for item, module in modules for node in module.graph.nodes)

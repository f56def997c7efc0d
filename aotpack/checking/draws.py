"""Makes further inputs from the example: where edge cases of masks, zeros, ties and sizes are, and values for shapes alone.

Values stay valid for the model. Integers are among those of the example, and numbers that are never
negative stay in their range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from aotpack_loader.format import expressions, schema

from .._torch.api.argument_records import open_dataclasses
from .._torch.api.fake_tensors import is_plain_tensor, is_traced
from .eager import Example

_FEW_VALUES = 2
_aten = torch.ops.aten
_ORDERS_TIES = frozenset((_aten.topk.default, _aten.kthvalue.default))
"""Operators that may return any of equal elements."""
_FAR = (30.0, -30.0, 1e4)
"""Extreme values, in standard deviations."""


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values, and not a shape alone."""
    return not (tensor.is_meta or is_traced(tensor))


def with_values(example: Example) -> Example:
    """The example with drawn values where it has shapes alone: normal numbers, integers of 0 and 1."""
    generator = torch.Generator().manual_seed(0)

    def drawn(tensor: torch.Tensor) -> torch.Tensor:
        if has_values(tensor):
            return tensor
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        if tensor.is_floating_point() or tensor.is_complex():
            made.copy_(torch.randn(tensor.shape, generator=generator))
        else:
            made.copy_(torch.randint(0, 2, tensor.shape, generator=generator))
        return made.requires_grad_(tensor.requires_grad)

    return _mapped(example, drawn)


def of_edges(example: Example) -> Example | None:
    """Inputs of the same sizes with rows that are masked, zeros, ties and extreme values. None: they cannot be made."""
    generator = torch.Generator().manual_seed(1)
    tensors = _tensors(example)
    if not _are_separate(tensors):
        return None
    return _mapped(example, lambda tensor: _like(tensor, _edges(tensor.detach(), generator)))


def orders_ties(graphs: Iterable[torch.fx.GraphModule]) -> bool:
    """Whether a graph has an operator for which torch does not say which of equal elements is returned."""
    return any(node.target in _ORDERS_TIES for graph in graphs for node in graph.graph.nodes)


def of_equal_sizes(example: Example, method: schema.Method) -> Example | None:
    """Inputs whose dynamic sizes are all equal. None: the method has at most one, or does not take such."""
    sizes = _equal_sizes(method)
    tensors = _tensors(example)
    if sizes is None or not _are_separate(tensors):
        return None
    leaves = iter(method.leaves)

    def resized(leaf: Any) -> Any:
        described = next(leaves)
        if isinstance(described, schema.IntegerLeaf):
            return sizes[described.size]
        if not isinstance(described, schema.TensorLeaf) or not isinstance(leaf, torch.Tensor):
            return leaf
        return _like(leaf, _resized(leaf.detach(), [expressions.evaluate(size, sizes) for size in described.shape]))

    with open_dataclasses((example.args, example.kwargs)):
        args, kwargs = torch.utils._pytree.tree_map(resized, (example.args, example.kwargs))
    return Example(args, kwargs)


def _mapped(example: Example, change: Any) -> Example:
    known: dict[int, torch.Tensor] = {}

    def once(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = change(tensor)
        return known[id(tensor)]

    with open_dataclasses((example.args, example.kwargs)):
        args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, once, (example.args, example.kwargs))
    return Example(args, kwargs)


def _tensors(example: Example) -> list[torch.Tensor]:
    with open_dataclasses((example.args, example.kwargs)):
        leaves = torch.utils._pytree.tree_leaves((example.args, example.kwargs))
    return list({id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}.values())


def _are_separate(tensors: list[torch.Tensor]) -> bool:
    """Whether the tensors are plain leaves, none of which share memory."""
    if not all(is_plain_tensor(x) and x.layout == torch.strided and x.is_leaf for x in tensors):
        return False
    storages = {x.untyped_storage()._cdata for x in tensors}
    return len(storages) == len(tensors) and not any(torch.is_conj(x) or x.is_neg() for x in tensors)


def _like(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A tensor with other values, and the order of dimensions in memory and the class of ``tensor``."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    back = [order.index(dim) for dim in range(tensor.dim())]
    laid_out = value.to(tensor.dtype).permute(order).contiguous().permute(back).detach()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(laid_out, tensor.requires_grad)
    return laid_out.requires_grad_(tensor.requires_grad)


def _edges(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if value.is_complex() or not value.numel() or value.dim() == 0:
        return value
    seen = value.flatten().unique() if value.dtype != torch.bool else torch.tensor([False, True])
    finite = value.dtype == torch.bool or bool(value.isfinite().all())
    if len(seen) <= _FEW_VALUES or not finite:
        return _masked(value, seen, generator)
    if not value.is_floating_point():
        return _among(value, seen, generator)
    return _numbers(value, generator)


def _masked(value: torch.Tensor, seen: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Values of a mask: a row of the smallest, a row of the largest, and others at random."""
    if len(seen) < _FEW_VALUES:
        return value
    made = seen[torch.randint(0, len(seen), value.shape, generator=generator)]
    rows = made if made.dim() == 1 else made.transpose(0, -2)
    rows[0] = seen[0]
    if rows.shape[0] > 2:
        rows[1] = seen[-1]
    return made


def _among(value: torch.Tensor, seen: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Integers of the example. What is sorted stays, and what is a permutation stays one."""
    flat = value.flatten()
    if bool((flat[1:] >= flat[:-1]).all()):
        return value
    if len(seen) == flat.numel():
        return flat[torch.randperm(flat.numel(), generator=generator)].reshape(value.shape)
    made = seen[torch.randint(0, len(seen), value.shape, generator=generator)]
    made[0] = seen[0]
    return made


def _numbers(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    low, high = float(value.min()), float(value.max())
    if low >= 0:
        made = low + (high - low) * torch.rand(value.shape, generator=generator)
        edges = [low, high, high]
    else:
        spread = min(float(value.float().std()), 1e3)
        made = spread * torch.randn(value.shape, generator=generator)
        edges = [spread * far for far in _FAR]
    if made.shape[0] > 1:
        made[0] = max(low, 0.0)  # zeros, which are also ties
    flat = made.view(-1)
    for i, edge in enumerate(edges[: flat.numel() // 4]):
        flat[-1 - i] = edge
    return made


def _equal_sizes(method: schema.Method) -> Mapping[str, int] | None:
    symbols = [symbol for symbol in method.symbols if symbol.hint is not None]
    example = {symbol.name: symbol.hint or symbol.minimum for symbol in method.symbols}
    if len(symbols) < 2:
        return None
    holds = [expressions.parse(text) for text in method.constraints]
    for size in sorted({*example.values(), 4, 6, 8} - {0, 1}):
        sizes = dict.fromkeys(example, size)
        if all(symbol.takes(size) for symbol in method.symbols) and all(is_satisfied(one, sizes) for one in holds):
            return None if sizes == example else sizes
    return None


def is_satisfied(holds: expressions.Compiled, sizes: Mapping[str, int]) -> bool:
    """Whether a constraint holds for sizes. One that is undefined for them does not."""
    try:
        return bool(holds(sizes))
    except expressions.UNDEFINED:
        return False


def _resized(value: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """Values repeated or cut to a shape."""
    for dim, size in enumerate(shape):
        if value.shape[dim] != size:
            if not value.shape[dim]:
                return torch.zeros(shape, dtype=value.dtype)
            value = value.index_select(dim, torch.arange(size) % value.shape[dim])
    return value

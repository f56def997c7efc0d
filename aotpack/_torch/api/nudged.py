"""Runs a model whose every result is rounded otherwise, as another order of additions would round it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from .addresses import storage_address

_EXACT: Final = {
    "_to_copy", "abs", "amax", "amin", "cat", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd", "copy", "copy_",
    "embedding", "fill", "fill_", "flip", "floor_divide", "gather", "hardshrink_backward", "hardtanh_backward", "index",
    "index_put", "index_put_", "index_select", "lift_fresh", "masked_fill", "masked_fill_", "masked_scatter", "masked_select",
    "max", "max_pool2d_with_indices", "max_pool3d_with_indices", "maximum", "min", "minimum", "neg", "relu", "relu_", "repeat",
    "roll", "scatter", "select_backward", "select_scatter", "slice_backward", "slice_scatter", "sort", "stack",
    "threshold_backward", "topk", "where",
}  # fmt: skip
"""Operators that return numbers of their inputs, or whole ones. Equal numbers stay equal there."""

_ADDS_IN_HALF: Final = {"native_layer_norm_backward"}
"""Operators whose kernels add numbers of half precision in half precision, also for sums that they return in float32."""

_SCALE_FIRST: Final = {"native_batch_norm", "native_group_norm"}
"""Norms that multiply before they subtract the mean: whole numbers are rounded, too, and constants become no zeros."""

_OVERLAPS: Final = 1
"""What torch answers of a tensor of which several elements are one; such a tensor cannot be written to."""

_IN_A_ROW: Final = 4096
"""How many numbers compiled code adds one after the other. It adds such sums in pairs, as eager does from the start."""
_TERMS: Final = 64
"""How many more terms of a sum count as one more rounding, for a caller that allows eight times what it sees.

A sum of n equal terms, one after the other, is off by up to n/4 roundings: they all go one way.
"""


def nudge(tensor: torch.Tensor, generator: torch.Generator, roundings: int, *, also_whole: bool = False) -> None:
    """Move every number by up to some roundings at random, and all of them by some in one direction.

    Roundings of a long sum add up: a mean of zero moves with the drift. Whole numbers stay unless
    ``also_whole``, because a model may compare them: masks, labels, counts.
    """
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            nudge(getattr(tensor, name), generator, roundings)
        return
    if tensor.layout != torch.strided or not tensor.numel() or tensor.dtype == torch.complex32:
        return
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point() or tensor.dtype.itemsize < 2 or torch._debug_has_internal_overlap(tensor) == _OVERLAPS:
        return
    with torch.no_grad():
        eps = torch.finfo(tensor.dtype).eps
        steps = torch.randint(-roundings, roundings + 1, tensor.shape, generator=generator)
        drift = torch.randint(-roundings, roundings + 1, (), generator=generator) * tensor.sign().double()
        factors = (1 + eps * (steps + drift)).to(torch.promote_types(tensor.dtype, torch.float32))
        stays = (tensor == tensor.round()) & (tensor.abs() < 1 / eps) & (not also_whole)
        tensor.copy_(torch.where(stays, tensor, (tensor * factors).to(tensor.dtype)))


class Nudged(TorchDispatchMode):
    """Nudges what each operator computes, gradients that are sums of many numbers by more.

    The tensors ``given`` are what they are: a comparison of them has one outcome. They are nudged only for
    operators that may add inside, because a sum near zero is off by the roundings of its terms.
    """

    def __init__(self, generator: torch.Generator, roundings: int, given: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator, self._roundings = generator, roundings
        self._given = {storage_address(tensor) for tensor in given} - {0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.removeprefix("aten::") in _EXACT:
            return func(*args, **(kwargs or {}))
        if all(returned.alias_info is None for returned in func._schema.returns):
            change = self._moved if torch.Tag.pointwise not in func.tags else _apart if self._roundings else None
            args, kwargs = tree_map_only(torch.Tensor, change, (args, kwargs)) if change else (args, kwargs)
        if func._schema.name.removeprefix("aten::") in _SCALE_FIRST:
            args = (self._nudged(args[0], also_whole=True), *args[1:])
        result = func(*args, **(kwargs or {}))
        # There sums are gradients of parameters, which are results. Others move what comes after them, at kinks by much.
        in_backward = torch._C._current_graph_task_id() >= 0
        largest = max((x.numel() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)), default=0)
        for value, returned in zip(result if isinstance(result, tuple) else (result,), func._schema.returns, strict=False):
            if returned.alias_info is None or returned.alias_info.is_write:
                for tensor in tree_leaves(value):
                    if isinstance(tensor, torch.Tensor) and tensor.numel():
                        terms = min(largest // tensor.numel(), _IN_A_ROW) if in_backward else 0
                        coarse = _coarser(func, args, tensor.dtype)
                        nudge(tensor, self._generator, self._roundings * max(terms // _TERMS, 1) * coarse)
        return result

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._nudged(tensor) if storage_address(tensor) in self._given else tensor

    def _nudged(self, tensor: torch.Tensor, *, also_whole: bool = False) -> torch.Tensor:
        made = tensor.clone()
        nudge(made, self._generator, self._roundings, also_whole=also_whole)
        return made


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers with gaps between them. Kernels take these one by one, not in vectors: ``gelu`` of infinity differs."""
    if not tensor.dim() or tensor.layout != torch.strided or hasattr(tensor, "__tensor_flatten__"):
        return tensor
    strides = [2 * step for step in torch.empty_like(tensor, device="meta").stride()]
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _coarser(func: Any, args: tuple[Any, ...], dtype: torch.dtype) -> int:
    """How many roundings of ``dtype`` are one of the type in which the kernel of an operator adds."""
    if func._schema.name.removeprefix("aten::") not in _ADDS_IN_HALF or not dtype.is_floating_point:
        return 1
    return max(int(torch.finfo(args[0].dtype).eps / torch.finfo(dtype).eps), 1)

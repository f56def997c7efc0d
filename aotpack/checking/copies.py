"""Copies tensors together, so that copies share memory where the originals do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.utils._pytree as pytree

from .._torch.api.fake_tensors import is_wrapper_subclass

_ALIGNMENT = 64


class Copies:
    """Copies of ``tensors``, which may share memory with each other and be views of each other.

    A copy is a leaf where its original is one. ``sources`` are the leaves behind copies that have a
    history, by the id of the copy.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        given = list({id(tensor): tensor for tensor in tensors}.values())
        bases = [tensor._base for tensor in given if tensor._base is not None]
        known = {id(tensor) for tensor in given}
        self._bases = {id(base) for base in bases if id(base) in known or sum(base is other for other in bases) > 1}
        self._made: dict[int, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []  # so that no id is used again
        self._ranges: dict[int, tuple[int, int]] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        self.sources: dict[int, torch.Tensor] = {}
        for tensor in (*given, *(base for base in bases if id(base) in self._bases)):
            self._measure(tensor)

    @property
    def share_memory(self) -> bool:
        """Whether a tensor shares memory with another one."""
        return bool(self._bases) or len(self._ranges) < self._measured

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy of a tensor, the same one each time."""
        if id(tensor) not in self._made:
            self._kept.append(tensor)
            self._made[id(tensor)] = self._copy(tensor)
        return self._made[id(tensor)]

    def tree(self, value: Any) -> Any:
        """Nested containers with copies of the tensors in them."""
        return pytree.tree_map_only(torch.Tensor, self.of, value)

    _measured = 0

    def _measure(self, tensor: torch.Tensor) -> None:
        if is_wrapper_subclass(tensor):
            for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
                self._measure(getattr(tensor, name))
        elif _has_memory(tensor):
            self._measured += 1
            start, end = _bytes(tensor)
            key = tensor.untyped_storage()._cdata
            low, high = self._ranges.get(key, (start, end))
            self._ranges[key] = min(low, start), max(high, end)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        base = tensor._base
        if base is not None and id(base) in self._bases and base.dtype == tensor.dtype and _is_plain(base):
            with torch.set_grad_enabled(tensor.requires_grad):
                view = self.of(base).as_strided(tensor.shape, tensor.stride(), self._offset(tensor))
            return view.requires_grad_() if tensor.requires_grad and not view.requires_grad else view
        copy = self._data(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(copy, tensor.requires_grad)
        if not tensor.requires_grad:
            return copy
        leaf = copy.requires_grad_()
        if tensor.is_leaf:
            return leaf
        with torch.enable_grad():
            later = leaf.clone()
        self.sources[id(later)] = leaf
        return later

    def _offset(self, tensor: torch.Tensor) -> int:
        """Where a tensor begins in the copy of its storage, in elements."""
        low, _ = self._ranges[tensor.untyped_storage()._cdata]
        return int(tensor.storage_offset()) - low // tensor.element_size()

    def _data(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if is_wrapper_subclass(tensor):
                names, metadata = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
                parts = {name: self.of(getattr(tensor, name)).detach() for name in names}
                kind: Any = type(tensor)
                made: torch.Tensor = kind.__tensor_unflatten__(parts, metadata, tensor.shape, tensor.stride())
                return made
            if not _is_plain(tensor):
                return tensor.detach().clone()
            key = tensor.untyped_storage()._cdata
            if key not in self._storages:
                low, high = self._ranges[key]
                memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), low, (high - low,), (1,))
                self._storages[key] = memory.clone().untyped_storage()
            empty = torch.empty(0, dtype=tensor.dtype)
            return empty.set_(self._storages[key], self._offset(tensor), tensor.shape, tensor.stride())


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() > 0


def _is_plain(tensor: torch.Tensor) -> bool:
    return _has_memory(tensor) and not (tensor.is_conj() or tensor.is_neg()) and not is_wrapper_subclass(tensor)


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """The range of a storage that holds a tensor. It begins where any element type may begin."""
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    extent = 1 + sum(int(n - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return start - start % _ALIGNMENT, start + extent * size

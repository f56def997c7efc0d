"""Finds example inputs that are one tensor or share a storage, and separates them for tracing.

A trace with separate tensors is right for every sharing pattern under two conditions. The model
must not write to shared storage, and must not compare its arguments by identity. Otherwise
:mod:`.synthetic_bases` rearranges the arguments.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader._torch_compat import is_plain_tensor
from aotpack_loader.runtime.memory import overlap

from ..._torch.api.fake_tensors import blank_like
from ..._torch.api.torch_types import StorageWeakRef

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Sharing:
    """How the arguments share storages, by leaf number.

    ``identical`` groups are one tensor. ``overlapping`` groups share elements, directly or through
    others of the group. ``neighbours`` are all of these, and further leaves whose storages may be
    related otherwise in a call. These share a storage without overlap, start at an offset in their
    storage, or share the storage of a parameter or buffer.
    """

    identical: tuple[tuple[int, ...], ...]
    overlapping: tuple[tuple[int, ...], ...]
    neighbours: frozenset[int]

    @property
    def leaves(self) -> set[int]:
        """The leaf numbers of all arguments that are identical or overlap."""
        return {leaf for group in (*self.identical, *self.overlapping) for leaf in group}


def sharing(args: tuple[Any, ...], kwargs: dict[str, Any], state: Iterable[torch.Tensor] = ()) -> Sharing:
    """Find shared storages among the arguments' tensors, and between them and the model's own tensors (``state``)."""
    positions: dict[int, list[int]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for i, leaf in enumerate(pytree.tree_leaves((args, kwargs))):
        if isinstance(leaf, torch.Tensor):
            positions.setdefault(id(leaf), []).append(i)
            tensors[i] = leaf
    identical = tuple(tuple(group) for group in positions.values() if len(group) > 1)
    neighbours = {leaf for group in identical for leaf in group}
    neighbours |= {i for i, tensor in tensors.items() if _is_strided(tensor) and tensor.storage_offset()}
    owned = [tensor for tensor in state if _is_strided(tensor)]
    neighbours |= {i for i, tensor in tensors.items() if any(_shares_storage(tensor, other) for other in owned)}
    groups = {group[0]: {group[0]} for group in positions.values()}
    for a, b in itertools.combinations(groups, 2):
        if _shares_storage(tensors[a], tensors[b]):
            neighbours |= {a, b}
            if tensors[a].is_meta or overlap(tensors[a], tensors[b]):
                groups[a] |= groups[b]
                groups.update(dict.fromkeys(groups[a], groups[a]))
    distinct = {id(group): group for group in groups.values() if len(group) > 1}
    return Sharing(identical, tuple(tuple(sorted(group)) for group in distinct.values()), frozenset(neighbours))


def _is_strided(tensor: torch.Tensor) -> bool:
    return is_plain_tensor(tensor) and tensor.layout == torch.strided


def _shares_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors share a storage."""
    if not (_is_strided(a) and _is_strided(b)):
        return False
    return bool(StorageWeakRef(a.untyped_storage()) == StorageWeakRef(b.untyped_storage()))


def separated(args: tuple[Any, ...], kwargs: dict[str, Any], shared: Sharing, gaps: Collection[int] = ()) -> Inputs:
    """Return the arguments as separate tensors, and those in ``gaps`` with dense strides.

    Values are not kept.
    """
    leaves = pytree.tree_leaves((args, kwargs))
    strides = {i: dense_stride(leaves[i]) for i in gaps}
    return replaced(args, kwargs, {i: like(leaves[i], stride=strides.get(i)) for i in shared.neighbours.union(gaps)})


def replaced(args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Mapping[int, Any]) -> Inputs:
    """Return the arguments with some leaves replaced, by leaf number."""
    flat, spec = pytree.tree_flatten((args, kwargs))
    inputs: Inputs = pytree.tree_unflatten([leaves.get(i, leaf) for i, leaf in enumerate(flat)], spec)
    return inputs


def has_gaps(tensor: torch.Tensor) -> bool:
    """Whether a tensor is not dense: its storage has elements of others between its own, as in a slice."""
    if not _is_strided(tensor):
        return False
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if s):
        if stride != expected:
            return True
        expected *= size
    return False


def dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return strides without gaps, with the dimensions in the same order."""
    return torch.empty_like(tensor, device="meta").stride()


def like(tensor: torch.Tensor, *, requires_grad: bool | None = None, stride: Sequence[int] | None = None) -> torch.Tensor:
    """Return a tensor like ``tensor``, with the same strides or ``stride``.

    Its values are undefined.

    If it requires a gradient, it is a leaf of autograd's graph only if ``tensor`` is one.
    """
    if not is_plain_tensor(tensor):
        return blank_like(tensor).requires_grad_(tensor.requires_grad)
    if stride is None:
        fresh = blank_like(tensor)
    else:
        fresh = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    if not (tensor.requires_grad if requires_grad is None else requires_grad):
        return fresh
    if tensor.is_leaf:
        return fresh.requires_grad_()
    with torch.enable_grad():
        return fresh.copy_(torch.empty_like(fresh).requires_grad_())  # makes it a non-leaf

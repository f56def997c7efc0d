"""Example inputs that are one tensor or share memory: traced apart, or, where the model writes to them, as one base.

What is traced with a tensor of its own in each place is right for every pattern, as long as nothing in a shared memory is
written to and the model does not ask which of its arguments are the same.
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

from ..._torch import StorageWeakRef, blank_like

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Sharing:
    """Leaf numbers: ``identical`` are one tensor, ``overlapping`` have memory in common, directly or through others.

    ``neighbours`` are all these, those that lie apart in one storage, and those that begin inside theirs
    or lie in a parameter's or buffer's: a call's may not.
    """

    identical: tuple[tuple[int, ...], ...]
    overlapping: tuple[tuple[int, ...], ...]
    neighbours: frozenset[int]

    @property
    def leaves(self) -> set[int]:
        """All that share."""
        return {leaf for group in (*self.identical, *self.overlapping) for leaf in group}


def sharing(args: tuple[Any, ...], kwargs: dict[str, Any], state: Iterable[torch.Tensor] = ()) -> Sharing:
    """Compare all tensors among the arguments, and with the model's own."""
    places: dict[int, list[int]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for i, leaf in enumerate(pytree.tree_leaves((args, kwargs))):
        if isinstance(leaf, torch.Tensor):
            places.setdefault(id(leaf), []).append(i)
            tensors[i] = leaf
    identical = tuple(tuple(group) for group in places.values() if len(group) > 1)
    neighbours = {leaf for group in identical for leaf in group}
    neighbours |= {i for i, tensor in tensors.items() if _is_strided(tensor) and tensor.storage_offset()}
    owned = [tensor for tensor in state if _is_strided(tensor)]
    neighbours |= {i for i, tensor in tensors.items() if any(_is_beside(tensor, other) for other in owned)}
    groups = {group[0]: {group[0]} for group in places.values()}
    for a, b in itertools.combinations(groups, 2):
        if _is_beside(tensors[a], tensors[b]):
            neighbours |= {a, b}
            if tensors[a].is_meta or overlap(tensors[a], tensors[b]):
                groups[a] |= groups[b]
                groups.update(dict.fromkeys(groups[a], groups[a]))
    distinct = {id(group): group for group in groups.values() if len(group) > 1}
    return Sharing(identical, tuple(tuple(sorted(group)) for group in distinct.values()), frozenset(neighbours))


def _is_strided(tensor: torch.Tensor) -> bool:
    return is_plain_tensor(tensor) and tensor.layout == torch.strided


def _is_beside(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    if not (_is_strided(a) and _is_strided(b)):
        return False
    return bool(StorageWeakRef(a.untyped_storage()) == StorageWeakRef(b.untyped_storage()))


def separated(args: tuple[Any, ...], kwargs: dict[str, Any], shared: Sharing, gaps: Collection[int] = ()) -> Inputs:
    """The arguments with a tensor of its own in every place, ``gaps`` without them; values are not kept."""
    leaves = pytree.tree_leaves((args, kwargs))
    strides = {i: dense_stride(leaves[i]) for i in gaps}
    return replaced(args, kwargs, {i: like(leaves[i], stride=strides.get(i)) for i in shared.neighbours.union(gaps)})


def replaced(args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Mapping[int, Any]) -> Inputs:
    """The arguments with other leaves in some places, by leaf number."""
    flat, spec = pytree.tree_flatten((args, kwargs))
    inputs: Inputs = pytree.tree_unflatten([leaves.get(i, leaf) for i, leaf in enumerate(flat)], spec)
    return inputs


def has_gaps(tensor: torch.Tensor) -> bool:
    """Whether the strides do not follow from the sizes: between its first and last element lies memory that is not its."""
    if not _is_strided(tensor):
        return False
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if s):
        if stride != expected:
            return True
        expected *= size
    return False


def dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """Its strides without gaps, the dimensions in the same order."""
    return torch.empty_like(tensor, device="meta").stride()


def like(tensor: torch.Tensor, *, requires_grad: bool | None = None, stride: Sequence[int] | None = None) -> torch.Tensor:
    """A tensor of the same type, a leaf or not as ``tensor`` is, with its strides or others; its values do not matter."""
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
        return fresh.copy_(torch.empty_like(fresh).requires_grad_())  # now a result of earlier computation

"""Replaces arguments that share memory and are written to by synthetic bases.

The wrapped model takes its arguments as views of their base, so that the trace sees which
arguments share memory. The loader makes the base from the caller's arguments. The wrapped model
also replaces a repeated argument by its first occurrence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader._torch_compat import have_one_version
from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import schema
from aotpack_loader.runtime.bases import COUNTED_APART
from aotpack_loader.runtime.memory import extent, span

from ...graph.literals import dtype_name
from .aliasing import Sharing, like, replaced

PREFIX = "model."
"""The prefix of the names of parameters and buffers in a rearranged model."""

_RETURNED = "\0argument "


@dataclass(frozen=True)
class Writes:
    """The arguments that a method changes, by leaf number.

    ``data``: their values are written. ``with_gradients``: written with values that require a gradient.
    ``reshaped``: their sizes or strides change.
    """

    data: frozenset[int]
    with_gradients: frozenset[int]
    reshaped: frozenset[int]


@dataclass(frozen=True)
class Arrangement:
    """What is traced: the model and its inputs. The first inputs are the ``bases``."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    bases: tuple[schema.SyntheticBasePrimal | schema.ViewBasePrimal, ...] = ()
    identical: tuple[tuple[int, ...], ...] = ()
    prefix: str = ""


@dataclass(frozen=True)
class _View:
    """Argument ``leaf`` as a view of a base.

    ``twin`` counts earlier views with the same offset, sizes and strides.
    """

    leaf: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    detached: bool
    whole: bool
    twin: int

    def of(self, base: torch.Tensor) -> torch.Tensor:
        """Return the view of ``base``, made by operators that do not depend on the base's storage offset."""
        if self.whole:
            return base
        if self.detached:
            base = base.detach()
        length = extent(tuple(base.shape), base.stride())
        flat = base if base.stride() == (1,) else base.view(-1) if base.is_contiguous() else base.as_strided((length,), (1,))
        piece = flat.narrow(0, self.offset, extent(self.shape, self.stride))
        return self._marked(piece if self.stride == (1,) else self._shaped(piece))

    def _marked(self, view: torch.Tensor) -> torch.Tensor:
        """Return a view that ``count_twins`` can distinguish from those with the same address.

        It has additional view operators.
        """
        for _ in range(self.twin):
            view = view.unsqueeze(0).squeeze(0)
        return view

    def _shaped(self, piece: torch.Tensor) -> torch.Tensor:
        order = sorted(range(len(self.shape)), key=lambda dim: -self.stride[dim])
        if not _is_dense([(self.shape[dim], self.stride[dim]) for dim in order]):
            return piece.as_strided(self.shape, self.stride)
        ordered = piece.view([self.shape[dim] for dim in order])
        return ordered if order == sorted(order) else ordered.permute([order.index(dim) for dim in range(len(order))])


def _is_dense(dims: Sequence[tuple[int, int]]) -> bool:
    """Whether sizes and strides, outermost first, have no gaps and no overlap."""
    expected = 1
    for size, step in reversed(dims):
        if size > 1 and step != expected:
            return False
        expected *= size
    return True


def count_twins(operators: Sequence[str]) -> int:
    """Return which of several arguments with the same address is meant.

    The view operators that ``_View._marked`` adds are counted.
    """
    pairs = range(0, len(operators) - 1, 2)
    names = [tuple(name.split(".")[1] for name in operators[i : i + 2]) for i in pairs]
    return next((i for i, pair in enumerate(names) if pair != ("unsqueeze", "squeeze")), len(names))


class _Rearranged(torch.nn.Module):
    """``model`` with some arguments taken as views of bases, or replaced by other arguments."""

    def __init__(self, model: torch.nn.Module, views: Sequence[Sequence[_View]], repeats: Mapping[int, int]) -> None:
        super().__init__()
        self.model = model
        self._views, self._repeats = views, dict(repeats)
        self.training = model.training

    def forward(self, bases: tuple[torch.Tensor, ...], *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        for base, views in zip(bases, self._views, strict=True):
            for view in views:
                leaves[view.leaf] = view.of(base)
        for leaf, first in self._repeats.items():
            leaves[leaf] = leaves[first]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        result = self.model(*args, **kwargs)
        if not bases:
            return result
        results, result_spec = pytree.tree_flatten(result)
        taken = [view.leaf for views in self._views for view in views]
        marked = []
        for value in results:
            for leaf in taken:
                if value is leaves[leaf]:
                    value = f"{_RETURNED}{leaf}"
            marked.append(value)
        return pytree.tree_unflatten(marked, result_spec)


def returned_argument(value: Any) -> int | None:
    """Return the leaf number of an argument that a rearranged model returned as it is, or None."""
    return int(value.removeprefix(_RETURNED)) if isinstance(value, str) and value.startswith(_RETURNED) else None


def arrange(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shared: Sharing,
    writes: Writes,
    paths: Sequence[str],
    *,
    grad: bool,
    compares: bool,
) -> Arrangement:
    """Rearrange the arguments of a model that writes to shared memory or compares identities.

    Raises:
        UnsupportedError: names arguments that share memory in a way that one base cannot express.
    """
    leaves = pytree.tree_leaves((args, kwargs))
    first_of = {leaf: group[0] for group in shared.identical for leaf in group}
    data, with_gradients = ({first_of.get(leaf, leaf) for leaf in some} for some in (writes.data, writes.with_gradients))
    reshaped = {first_of.get(leaf, leaf) for leaf in writes.reshaped}
    merged = [
        _Group(group, leaves, paths, data, with_gradients if grad else set()) for group in shared.overlapping if data & set(group)
    ]
    inside = {leaf for group in merged for leaf in group.leaves}
    recorded = grad and any(x.requires_grad for x in (*leaves, *model.parameters()) if isinstance(x, torch.Tensor))
    problems = [problem for group in merged for problem in group.problems(reshaped, grad=grad, recorded=recorded)]
    if problems:
        raise UnsupportedError(
            "Arguments share memory, and the model writes to one of them in a way that a bundle does not support.",
            problems,
            hint="Pass clones, or tensors that are views of one tensor, or detached from it.",
        )
    touched = data | reshaped | inside
    identical = tuple(group for group in shared.identical if compares or group[0] in touched)
    repeats = {leaf: first for first, *others in identical for leaf in others}
    idle = {leaf: like(leaves[leaf], requires_grad=False) for leaf in (*inside, *repeats)}
    clones = {leaf: like(leaves[leaf]) for leaf in shared.neighbours - idle.keys()}
    args, kwargs = replaced(args, kwargs, {**clones, **idle})
    bases = [group.base(grad=grad) for group in merged]
    return Arrangement(
        _Rearranged(model, [views for _, _, views in bases], repeats),
        (tuple([example for example, _, _ in bases]), *args),
        kwargs,
        tuple([primal for _, primal, _ in bases]),
        identical,
        PREFIX,
    )


class _Group:
    """Arguments that share memory. The model writes to some of them."""

    def __init__(
        self,
        leaves: Sequence[int],
        tensors: Sequence[torch.Tensor],
        paths: Sequence[str],
        data: set[int],
        with_gradients: set[int],
    ) -> None:
        self.leaves = leaves
        self._tensors = {leaf: tensors[leaf] for leaf in leaves}
        self._paths, self._data, self._with_gradients = paths, data, with_gradients

    def _root(self, *, grad: bool) -> torch.Tensor | None:
        """Return the tensor that carries the gradients of the group, or None."""
        tensors = self._tensors
        anchors = [leaf for leaf in self.leaves if tensors[leaf].requires_grad or leaf in self._with_gradients]
        if not anchors:
            return None
        anchor = tensors[anchors[0]]
        root = anchor if anchor._base is None else anchor._base
        # Without gradients, the relation that autograd sees between them does not matter: a flat base (None) will do.
        return root if grad or not any(map(self._needs_own_base, self.leaves, [root] * len(self.leaves))) else None

    def _needs_own_base(self, leaf: int, root: torch.Tensor) -> bool:
        """Whether an argument is detached from ``root``, and has its own gradients or reaches beyond ``root``."""
        tensor = self._tensors[leaf]
        outside = span(tensor)[0] < span(root)[0] or span(tensor)[1] > span(root)[1]
        return _is_detached(tensor, root) and (tensor.requires_grad or leaf in self._with_gradients or outside)

    def problems(self, reshaped: set[int], *, grad: bool, recorded: bool) -> list[Problem]:
        """Return the reasons why one base cannot stand for the group.

        ``recorded``: whether a backward may need what the arguments were before a write.
        """
        root = self._root(grad=grad)
        first, *others = self.leaves
        found = []
        for leaf in self.leaves:
            tensor, other = self._tensors[leaf], self._paths[others[0] if leaf == first else first]
            message = ""
            if tensor.dtype != (root if root is not None else self._tensors[first]).dtype:
                message = "under another element type"
            elif leaf in reshaped:
                message = "and has its sizes or strides changed in place"
            elif root is not None and self._needs_own_base(leaf, root):
                message = "but autograd does not track them as views of one tensor"
            elif recorded and not have_one_version(tensor, self._tensors[first] if root is None else root):
                message = COUNTED_APART
            if message:
                found.append(Problem(self._paths[leaf], f"shares its memory with {other}, {message}"))
        return found

    def base(self, *, grad: bool) -> tuple[torch.Tensor, schema.SyntheticBasePrimal | schema.ViewBasePrimal, list[_View]]:
        """Return an example of the base, its description, and the arguments as views of it."""
        root = self._root(grad=grad)
        dtype = self._tensors[self.leaves[0]].dtype
        start = min(tensor.data_ptr() for tensor in self._tensors.values()) if root is None else root.data_ptr()
        views: list[_View] = []
        for leaf in self.leaves:
            views.append(self._view(leaf, start, root, views))
        members = [schema.BaseMember(view.leaf, view.offset, view.leaf in self._data, view.detached) for view in views]
        if root is not None:
            described = schema.ViewBasePrimal(members, dtype_name(dtype), list(root.shape), list(root.stride()))
            return like(root), described, views
        size = max(view.offset + extent(view.shape, view.stride) for view in views)
        example = torch.empty(size, dtype=dtype, device=self._tensors[self.leaves[0]].device)
        return example, schema.SyntheticBasePrimal(members, dtype_name(dtype), size), views

    def _view(self, leaf: int, start: int, root: torch.Tensor | None, before: Sequence[_View]) -> _View:
        tensor = self._tensors[leaf]
        offset = (tensor.data_ptr() - start) // tensor.element_size()
        detached = root is not None and _is_detached(tensor, root)
        geometry = (tuple(tensor.shape), tensor.stride(), offset)
        twin = sum((view.shape, view.stride, view.offset) == geometry for view in before if not view.whole)
        return _View(leaf, *geometry, detached, tensor is root, twin)


def _is_detached(tensor: torch.Tensor, root: torch.Tensor) -> bool:
    """Whether autograd treats ``tensor`` as independent of ``root`` although they share memory."""
    return tensor is not root and (tensor._base is not root or tensor.requires_grad != root.requires_grad)

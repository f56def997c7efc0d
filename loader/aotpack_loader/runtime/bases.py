"""Synthetic bases: one tensor replaces arguments that share memory, if the method writes to one of them.

This does at run time what AOTAutograd's synthetic bases do. The graph takes the base and makes the
arguments as views of it. Writes go through the base, so every argument sees them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._torch_compat import have_one_version
from ..errors import InputError, Problem
from ..format import schema


class Base:
    """Makes one base from the arguments of a call.

    Args:
        primal: the base.
        leaves: all arguments.
        records: whether the method has a backward, which may need what the arguments were before a write.
    """

    def __init__(
        self,
        primal: schema.SyntheticBasePrimal | schema.ViewBasePrimal,
        leaves: Sequence[schema.InputLeaf],
        *,
        records: bool = False,
    ) -> None:
        self._records = records
        order = sorted(primal.members, key=lambda member: (member.detached, not member.written, member.leaf))
        self._first, self._members = order[0], order
        self._paths = {member.leaf: leaves[member.leaf].path for member in order}
        dtype: torch.dtype = getattr(torch, primal.dtype)
        self._itemsize = dtype.itemsize
        self._size = primal.size if isinstance(primal, schema.SyntheticBasePrimal) else None
        self._geometry = (tuple(primal.shape), tuple(primal.stride)) if isinstance(primal, schema.ViewBasePrimal) else None

    def __call__(self, leaves: Sequence[torch.Tensor], strided_leaves: Sequence[torch.Tensor]) -> torch.Tensor:
        """The base of these leaves.

        ``strided_leaves`` has a copy instead of a leaf that has other strides than at build.

        Raises:
            InputError: they do not share memory as they did at build; names the arguments.
        """
        for member in self._members:
            if strided_leaves[member.leaf] is not leaves[member.leaf]:
                raise self._refused(
                    member.leaf,
                    "has other strides than the example, and must share memory, as it did when the bundle was built, with",
                )
        base = self._base(leaves[self._first.leaf])
        memory, start = base.untyped_storage().data_ptr(), base.data_ptr()
        for member in self._members:
            tensor = leaves[member.leaf]
            is_elsewhere = tensor.data_ptr() - start != member.offset * self._itemsize
            if is_elsewhere or tensor.untyped_storage().data_ptr() != memory:
                raise self._refused(member.leaf, "must share memory, as it did when the bundle was built, with")
            if self._geometry is not None and not _is_related(tensor, base, member):
                raise self._refused(member.leaf, "must be related in autograd, as it was when the bundle was built, to")
            if self._records and torch.is_grad_enabled() and not have_one_version(base, tensor):
                raise counted_apart(self._paths[member.leaf], self._other(member.leaf))
        return base

    def _base(self, tensor: torch.Tensor) -> torch.Tensor:
        """The base, found through the first member."""
        if self._size is None:
            base = tensor if tensor._base is None else tensor._base
            if (base.shape, base.stride()) != self._geometry:
                raise self._refused(
                    self._first.leaf,
                    "must be a view of a tensor of the example's shape and strides, as it was when the bundle was built, like",
                )
            return base
        # A view of a detached alias shares the argument's version counter, so writes are detected
        # as in eager.
        offset = tensor.storage_offset() - self._first.offset
        elements = tensor.untyped_storage().nbytes() // self._itemsize
        if offset < 0 or offset + self._size > elements:
            raise self._refused(self._first.leaf, "must share memory, as it did when the bundle was built, with")
        return tensor.detach().as_strided((self._size,), (1,), offset)

    def count_writes(self, leaves: Sequence[torch.Tensor], before: Sequence[int]) -> None:
        """Increase version counters as an in-place write does, for written leaves with a counter of their own."""
        for leaf, version in zip(self.written, before, strict=True):
            if leaves[leaf]._version == version:
                torch.autograd.graph.increment_version(leaves[leaf])

    @property
    def written(self) -> list[int]:
        """Indices of the leaves that the method writes to."""
        return [member.leaf for member in self._members if member.written]

    def _refused(self, leaf: int, message: str) -> InputError:
        return InputError(
            "The arguments do not share memory as they did when the bundle was built, and the model writes to one of them.",
            [Problem(self._paths[leaf], f"{message} {self._other(leaf)}")],
            hint="Call it with arguments that share memory in the same way, or build with arguments that share none.",
        )

    def _other(self, leaf: int) -> str:
        return next(path for i, path in self._paths.items() if i != leaf)


COUNTED_APART = "but a write to one does not count as a write to the other (set_, data)"
"""Why eager would compute gradients from memory that was written to since."""


def counted_apart(path: str, other: str) -> InputError:
    """The error for arguments in one memory whose version counters are not one."""
    return InputError(
        "Tensors of this call share memory, and the model writes to one of them.",
        [Problem(path, f"shares its memory with {other}, {COUNTED_APART}")],
        hint="Autograd does not detect such writes. Pass a clone, or detach() in place of set_ and data.",
    )


def _is_related(tensor: torch.Tensor, base: torch.Tensor, member: schema.BaseMember) -> bool:
    """Whether autograd knows ``tensor`` as a view of ``base``. A detached member must not require grad."""
    if member.detached:
        return not tensor.requires_grad
    return tensor is base or (tensor._base is base and tensor.requires_grad == base.requires_grad)

"""Checks at every call which arguments are the same tensor, and which share memory that the method writes to.

Only methods that write compare memory; other methods are correct for every pattern. Arguments that
shared memory at build become one base in the graph (:mod:`.bases`).

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from .._torch_compat import in_transform, with_memory
from ..errors import InputError, Problem
from ..format import schema
from .memory import extent, overlap, span

WRITES = ("data", "data_and_metadata", "storage", "resize")
"""Kinds of mutations that write elements; ``metadata`` changes one tensor object and no memory."""

_MOVES = ("data_and_metadata", "resize")
"""Kinds of mutations that may write beyond what the tensor covered."""


StateMemory = tuple[str, int, bool]
"""A parameter or buffer: its name, the bytes it reaches over, whether it is written to."""


class Pattern:
    """Which leaves must be, and which must not be, the same tensor object."""

    def __init__(self, method: schema.Method) -> None:
        self._paths = [leaf.path for leaf in method.leaves]
        self._identical = method.identical
        repeated = {leaf for _, *others in method.identical for leaf in others}
        tensors = [i for i, leaf in enumerate(method.leaves) if isinstance(leaf, schema.TensorLeaf)]
        self._distinct = [i for i in tensors if i not in repeated] if method.distinct else []

    def check(self, leaves: Sequence[Any], problems: list[Problem]) -> None:
        """Add violations by a call's leaves to ``problems``."""
        for first, *others in self._identical:
            for i in others:
                if leaves[i] is not leaves[first]:
                    message = f"must be the same tensor as {self._paths[first]}, as it was when the bundle was built"
                    problems.append(Problem(self._paths[i], message))
        seen: dict[int, int] = {}
        for i in self._distinct:
            first = seen.setdefault(id(leaves[i]), i)
            if first != i:
                message = f"must not be the same tensor as {self._paths[first]}: the model compares them with `is`"
                problems.append(Problem(self._paths[i], message))


class Memory:
    """Memory that tensors of a call must not share.

    This is memory that the method writes to, unless the tensors shared it at build.
    """

    def __init__(self, method: schema.Method, entries: Mapping[str, schema.StateEntry]) -> None:
        self._paths = [leaf.path for leaf in method.leaves]
        kinds = {mutation.primal: mutation.kind for mutation in method.mutations}
        written: set[int] = set()
        reshaped: set[int] = set()
        expected = {tuple(group) for group in method.identical}
        state = []
        for i, primal in enumerate(method.primals):
            writes = kinds.get(i) in WRITES
            if isinstance(primal, schema.InputPrimal) and i in kinds:
                (written if writes else reshaped).add(primal.leaf)
            elif isinstance(primal, (schema.SyntheticBasePrimal, schema.ViewBasePrimal)):
                members = {member.leaf for member in primal.members}
                repeated = {leaf for group in method.identical if members & {*group} for leaf in group}
                expected.add((*members, *repeated))
                written |= {member.leaf for member in primal.members if member.written}
            elif isinstance(primal, (schema.ParameterPrimal, schema.BufferPrimal)):
                state.append((primal.name, _reach(entries[primal.name]), writes))
        tensors = [i for i, leaf in enumerate(method.leaves) if isinstance(leaf, schema.TensorLeaf)]
        grown = {p.leaf for i, p in enumerate(method.primals) if kinds.get(i) in _MOVES and isinstance(p, schema.InputPrimal)}
        self._beside = list(_pairs(grown, tensors, expected))
        self.overlap = list(_pairs(written, tensors, expected))
        self._saved = _saved_beside(method, written, expected)
        self._same = list(_pairs(reshaped, tensors, expected))
        checked_state = [(i, [item for item in state if item[2] or i in written]) for i in tensors]
        self.state = [(i, items) for i, items in checked_state if items]

    def check(self, leaves: Sequence[Any], state: Mapping[str, torch.Tensor]) -> None:
        """Compare the tensors of a call, which passed all other checks.

        Raises:
            InputError: names two that share memory; nothing was run.
        """
        for a, b in self._same:
            if leaves[a] is leaves[b]:
                raise shared(self._paths[a], self._paths[b])
        if in_transform():
            leaves = [with_memory(leaf) for leaf in leaves]
            state = {name: with_memory(value) for name, value in state.items()}
        for a, b in self.overlap:
            if self._overlapping(leaves[a], leaves[b]):
                raise shared(self._paths[a], self._paths[b])
        for a, b in self._beside:
            if self._in_one_storage(leaves[a], leaves[b]):
                raise shared(self._paths[a], self._paths[b])
        for a, b in self._saved:
            if _have_one_base(leaves[a], leaves[b]) and _is_recorded([*leaves, *state.values()]):
                raise _counted_together(self._paths[a], self._paths[b])
        for leaf, entries in self.state:
            for name, _, written in self._near(leaves[leaf], entries, state):
                if self._overlapping(leaves[leaf], state[name]):
                    raise shared(name, self._paths[leaf]) if written else shared(self._paths[leaf], name)

    def _overlapping(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        return overlap(first, second)

    def _in_one_storage(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr() != 0

    def _near(
        self, tensor: torch.Tensor, entries: Sequence[StateMemory], state: Mapping[str, torch.Tensor]
    ) -> Sequence[StateMemory]:
        """State tensors whose address range overlaps the tensor's. This quick check nearly always finds none."""
        low, high = span(tensor)
        return [entry for entry in entries if (start := state[entry[0]].data_ptr()) < high and low < start + entry[1]]


def _saved_beside(method: schema.Method, written: set[int], expected: set[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Pairs of an argument that is written to and one that the backward needs as it was."""
    items = [] if method.backward is None else method.backward.saved
    primals = [method.primals[item.primal] for item in items if isinstance(item, schema.SavedPrimal)]
    saved = sorted({primal.leaf for primal in primals if isinstance(primal, schema.InputPrimal)} - written)
    return list(_pairs(written, saved, expected))


def _have_one_base(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether both are views of one tensor, which counts the writes to either."""
    return first._base is not None and first._base is second._base


def _is_recorded(values: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def _counted_together(written: str, saved: str) -> InputError:
    return InputError(
        "The model writes to a view of a tensor, and its backward needs another view of that tensor. The write is made after "
        "the forward, so autograd would take the other view for changed.",
        [Problem(written, f"is written to, and is a view of the same tensor as {saved}")],
        hint=f"Pass {saved}.clone().",
    )


def _pairs(some: set[int], others: Sequence[int], expected: set[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    for a in sorted(some):
        for b in others:
            if a != b and not (b in some and b < a) and not any(a in group and b in group for group in expected):
                yield a, b


def _reach(entry: schema.StateEntry) -> int:
    """Size in bytes from an entry's first to its last element. Its tensor has the entry's sizes and strides."""
    dtype: torch.dtype = getattr(torch, entry.dtype)
    return 0 if 0 in entry.shape else extent(entry.shape, entry.stride) * dtype.itemsize


def shared(written: str, other: str) -> InputError:
    return InputError(
        "Tensors of this call share memory, and the model writes to one of them.",
        [Problem(written, f"shares its memory with {other}")],
        hint="Pass a clone of one, or build with example inputs that share memory in the same way.",
    )

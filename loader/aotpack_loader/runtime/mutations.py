"""Writes what the forward graph computed back to the tensors that the model changed in place.

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .._torch_compat import set_version
from ..errors import InputError, Problem, UnsupportedVersionError
from ..format import expressions, schema

Environment = Mapping[str, int]
Write = Callable[[torch.Tensor, torch.Tensor, Environment], None]


class Mutations:
    """Applies the mutations of a method, in order."""

    def __init__(self, method: schema.Method) -> None:
        if any(mutation.kind == "storage" for mutation in method.mutations):
            raise UnsupportedVersionError(
                "This bundle replaces the storage of an argument, which this loader cannot do.",
                hint="Install a newer aotpack-loader.",
            )
        self._writes = [(mutation.primal, mutation.output, _versioned(mutation)) for mutation in method.mutations]
        self._touched = method.touched

    def __call__(self, primals: Sequence[torch.Tensor], outputs: Sequence[Any], environment: Environment) -> None:
        """Write ``outputs`` to ``primals``.

        ``primals`` are the caller's own tensors. ``outputs`` come from the forward; those that
        require grad are attached to autograd.
        """
        for primal, output, write in self._writes:
            write(primals[primal], outputs[output], environment)
        for touched in self._touched:
            if not primals[touched].is_inference():  # a tensor of inference mode has no version
                torch.autograd.graph.increment_version(primals[touched])


def _versioned(mutation: schema.Mutation) -> Write:
    write = _writer(mutation)
    if not mutation.unversioned:
        return write

    def unversioned(owner: torch.Tensor, updated: torch.Tensor, environment: Environment) -> None:
        version = None if owner.is_inference() else owner._version
        write(owner, updated, environment)
        if version is not None:
            set_version(owner, version)

    return unversioned


def _writer(mutation: schema.Mutation) -> Write:
    reshape, copy = _reshaper(mutation), _copier(mutation)
    if mutation.kind == "data":
        return copy
    if mutation.kind == "metadata":
        return reshape

    def both(owner: torch.Tensor, updated: torch.Tensor, environment: Environment) -> None:
        reshape(owner, updated, environment)
        copy(owner, updated, environment)

    return both


def _copier(mutation: schema.Mutation) -> Write:
    hidden_always = mutation.hidden_from_autograd

    def copy(owner: torch.Tensor, updated: torch.Tensor, environment: Environment) -> None:
        # A leaf that requires grad can only have been written to without autograd's knowledge
        # (AOTAutograd's epilogue).
        hidden = hidden_always or (owner.requires_grad and owner.is_leaf)
        (owner.detach() if hidden else owner).copy_(updated)

    return copy


def _reshaper(mutation: schema.Mutation) -> Write:
    if mutation.kind == "resize":
        return _resize
    if mutation.geometry is None:
        return _take_geometry
    shape, stride, offset = (
        _sizes(sizes) for sizes in (mutation.geometry.shape, mutation.geometry.stride, [mutation.geometry.offset])
    )
    absolute = mutation.geometry.absolute

    def reshape(owner: torch.Tensor, updated: torch.Tensor, environment: Environment) -> None:
        (first,) = offset(environment)
        owner.as_strided_(shape(environment), stride(environment), first if absolute else owner.storage_offset() + first)

    return reshape


def _resize(owner: torch.Tensor, updated: torch.Tensor, environment: Environment) -> None:
    with torch.no_grad():
        owner.resize_(updated.shape)


def _take_geometry(owner: torch.Tensor, updated: torch.Tensor, environment: Environment) -> None:
    owner.as_strided_(updated.shape, updated.stride(), updated.storage_offset())


def _sizes(sizes: list[schema.Dim]) -> Callable[[Environment], list[int]]:
    if all(isinstance(size, int) for size in sizes):
        fixed = [int(size) for size in sizes]
        return lambda environment: fixed
    return lambda environment: [expressions.evaluate(size, environment) for size in sizes]


class Layouts:
    """Checks arguments whose sizes or strides a method changes in place.

    Their strides and offset must equal those of the build.
    """

    def __init__(self, method: schema.Method) -> None:
        self._leaves: list[tuple[int, str, bool]] = []
        for mutation in method.mutations:
            primal = method.primals[mutation.primal]
            if mutation.kind != "data" and isinstance(primal, schema.InputPrimal):
                from_start = mutation.kind != "metadata" and mutation.geometry is not None and mutation.geometry.absolute
                self._leaves.append((primal.leaf, method.leaves[primal.leaf].path, from_start))

    def check(self, leaves: Sequence[Any], strided_leaves: Sequence[Any]) -> None:
        """Check the caller's leaves. ``strided_leaves`` has a copy instead of a leaf that has other strides than at build.

        Raises:
            InputError: names all arguments that do not fit; nothing was run.
        """
        problems = []
        for leaf, path, from_start in self._leaves:
            if strided_leaves[leaf] is not leaves[leaf]:
                problems.append(Problem(path, f"has the strides {list(leaves[leaf].stride())}, the example had others"))
            elif from_start and leaves[leaf].storage_offset():
                problems.append(Problem(path, f"has the storage offset {leaves[leaf].storage_offset()}, expected 0"))
        if problems:
            raise InputError(
                "The model changes sizes or strides of arguments in place, so they must have the layout of the example inputs.",
                problems,
                hint="Pass a contiguous clone, or build with an example of this layout.",
            )


class WrittenLeaves:
    """Checks arguments that a method writes to with gradients. A leaf that requires grad, and a view of one, are refused.

    Eager refuses them, too. Writes to a leaf through a tensor that autograd does not relate to it are allowed.
    """

    def __init__(self, method: schema.Method) -> None:
        self.leaves: list[tuple[int, str]] = []
        for mutation in method.mutations:
            if mutation.requires_grad and not mutation.hidden_from_autograd:
                written = _written_with_gradients(method.primals[mutation.primal])
                self.leaves += [(leaf, method.leaves[leaf].path) for leaf in written]

    def check(self, leaves: Sequence[Any]) -> None:
        """Check the caller's leaves.

        Raises:
            InputError: names all that are leaves and require a gradient; nothing was run.
        """
        if torch.is_grad_enabled():
            found = [(path, leaves[i]) for i, path in self.leaves if _is_of_leaf(leaves[i])]
            problems = [
                Problem(path, f"is {'' if x.is_leaf else 'a view of '}a leaf that requires a gradient") for path, x in found
            ]
            if problems:
                raise InputError(
                    "The model writes to arguments in place, which autograd does not allow for leaves that require a gradient.",
                    problems,
                    hint="Pass x.clone(), or call it under torch.no_grad().",
                )


def _written_with_gradients(primal: schema.Primal) -> list[int]:
    """The arguments that a write to ``primal`` changes, as far as autograd follows it."""
    if isinstance(primal, schema.InputPrimal):
        return [primal.leaf]
    if isinstance(primal, schema.ViewBasePrimal):
        return [member.leaf for member in primal.members if member.written and not member.detached]
    return []


def _is_of_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf that requires a gradient, or a view of one. ``takes_memory`` (csrc/) asks the same."""
    root = tensor if tensor._base is None else tensor._base
    return tensor.requires_grad and root.is_leaf

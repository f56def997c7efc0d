"""Native calls of a method whose sizes vary: each new set of sizes gets a description of its own.

A description for all sizes has expressions where the library takes numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .call_library import CallLibrary, NativeCall, Slots

    Environment = Mapping[str, int]
    Dim = int | str

_PATIENCE = 64
"""Sets of sizes of a method that are called in native code; with more, the others are called in Python."""


Binds = Sequence[tuple[int, int, Sequence[tuple[int, str, int, int | None]]]]


def make(description: dict[str, Any], library: CallLibrary, sizes: tuple[Binds, Sequence[str]]) -> NativeCall:
    """The native calls of a method: for its only sizes, or for those that ``sizes`` allows."""
    binds, constraints = sizes
    return BySizes(description, library, binds, constraints) if binds else library.make(at_sizes(description, {}))


class BySizes:
    """A method with dynamic sizes.

    Args:
        description: for all sizes.
        library: what makes the calls.
        binds: index and rank of an argument, and its dimensions that give a symbol, each with the
            symbol's name and limits.
        constraints: expressions that the sizes must satisfy.
    """

    def __init__(
        self,
        description: dict[str, Any],
        library: CallLibrary,
        binds: Binds,
        constraints: Sequence[str],
    ) -> None:
        self._description, self._library, self._binds, self._constraints = description, library, binds, constraints
        self._made: dict[tuple[int, ...], NativeCall] = {}
        self._symbols = [(name, low, high) for _, _, dims in binds for _, name, low, high in dims]

    def __call__(self, leaves: Sequence[Any], slots: Slots) -> list[Any] | None:
        """Make the call; None if Python must make it."""
        sizes = self._sizes(leaves)
        if sizes is None:
            return None
        native = self._made.get(sizes)
        if native is None:
            bounds = zip(self._symbols, sizes, strict=True)
            in_range = all(low <= size and (high is None or size <= high) for (_, low, high), size in bounds)
            environment = self._named(sizes)
            if len(self._made) == _PATIENCE or not in_range or not _hold(self._constraints, environment):
                return None
            native = self._made[sizes] = self._library.make(at_sizes(self._description, environment))
        return native(leaves, slots)

    def environment(self, leaves: Sequence[Any]) -> Environment:
        """The values of the symbols; empty for arguments that do not fit."""
        return self._named(self._sizes(leaves) or ())

    def _named(self, sizes: Sequence[int]) -> Environment:
        return {name: size for (name, _, _), size in zip(self._symbols, sizes, strict=False)}

    def _sizes(self, leaves: Sequence[Any]) -> tuple[int, ...] | None:
        sizes: list[int] = []
        for i, rank, dims in self._binds:
            leaf = leaves[i]
            if not isinstance(leaf, torch.Tensor) or leaf.dim() != rank:
                return None
            sizes += [leaf.shape[dim] for dim, *_ in dims]
        return tuple(sizes)


def _hold(constraints: Sequence[str], environment: Environment) -> bool:
    """Whether all constraints hold. One that cannot be evaluated counts as violated (A5)."""
    if not constraints:
        return True
    from ..format import expressions

    try:
        return all(expressions.parse(text)(environment) for text in constraints)
    except expressions.UNDEFINED:
        return False


def at_sizes(description: Mapping[str, Any], environment: Environment) -> dict[str, Any]:
    """The argument of ``CallLibrary.make``: a description for all sizes, at those of ``environment``."""
    differentiable = description["differentiable"]
    return {
        **description,
        "leaves": [_sized(leaf, environment) for leaf in description["leaves"]],
        "differentiable": None if differentiable is None else _differentiable(differentiable, environment),
        "results": [
            ("constant", _size(value, environment)) if kind == "size" else (kind, value) for kind, value in description["results"]
        ],
    }


def _differentiable(description: Mapping[str, Any], environment: Environment) -> dict[str, Any]:
    sizes = {i: _size(dim, environment) for i, dim in description["sizes"]}
    executable = description["executable"]
    if sizes and "run" in executable and executable["inputs"] is None:
        executable = {**executable, "run": _with_sizes(executable["run"], sizes)}
    return {
        **description,
        "executable": executable,
        "constants": [torch.empty((size, 0), dtype=torch.float32, device="cpu") for size in sizes.values()],
        "tangents": [_sized(tangent, environment) for tangent in description["tangents"]],
    }


def _with_sizes(run: Callable[[list[Any]], list[Any]], sizes: Mapping[int, int]) -> Callable[[list[Any]], list[Any]]:
    """A graph in parts that takes integers: native code passes only tensors."""

    def with_sizes(inputs: list[Any]) -> list[Any]:
        for position, size in sizes.items():
            inputs[position] = size
        return list(run(inputs))

    return with_sizes


def _sized(tensor: dict[str, Any], environment: Environment) -> dict[str, Any]:
    """The description of a tensor. A memory format instead of strides stands for the strides that it gives."""
    if "shape" not in tensor:
        return tensor
    shape = [_size(dim, environment) for dim in tensor["shape"]]
    stride = tensor["stride"]
    if isinstance(stride, list):
        stride = [_size(dim, environment) for dim in stride]
    elif stride is torch.contiguous_format:
        stride = [*accumulate((max(size, 1) for size in reversed(shape[1:])), mul, initial=1)][::-1] if shape else []
    elif stride is not None:
        stride = torch.empty(shape, device="meta", memory_format=stride).stride()
    return {**tensor, "shape": shape, "stride": stride}


def _size(dim: Dim, environment: Environment) -> int:
    if isinstance(dim, int):
        return dim
    if dim in environment:
        return environment[dim]
    from ..format import expressions  # few sizes are computed

    return expressions.evaluate(dim, environment)

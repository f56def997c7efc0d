"""Native calls of a method whose sizes vary: the library makes the calls of each new set of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .call_library import DescribedCall, NativeCall, OpenedCode, Slots

_MAX_SPECIALIZATIONS = 64
"""Sets of sizes of a method that are called in native code; with more, the others are called in Python."""


def make(described: DescribedCall, codes: Mapping[str, OpenedCode], constants: Sequence[torch.Tensor]) -> NativeCall:
    """The native calls of a method: for its only sizes, or for those of each call."""
    calls = SpecializedNativeCalls(described, codes, constants)
    return calls if described.symbols else calls.at_sizes({})


class SpecializedNativeCalls:
    """A method with dynamic sizes.

    Args:
        described: the method for all sizes.
        codes: what its graphs run, by name.
        constants: its tensors, in the order of the document.
    """

    def __init__(self, described: DescribedCall, codes: Mapping[str, OpenedCode], constants: Sequence[torch.Tensor]) -> None:
        self._described, self._codes, self._constants = described, codes, constants
        self._names, self._constraints = described.symbols, described.constraints
        self._made: dict[tuple[int, ...], NativeCall] = {}

    def __call__(self, leaves: Sequence[Any], slots: Slots) -> list[Any] | None:
        """Make the call; None if Python must make it."""
        sizes = self._described.sizes(leaves)
        if sizes is None:
            return None
        native = self._made.get(sizes)
        if native is None:
            environment = dict(zip(self._names, sizes, strict=True))
            if len(self._made) == _MAX_SPECIALIZATIONS or not _hold(self._constraints, environment):
                return None
            native = self._made[sizes] = self.at_sizes(environment)
        return native(leaves, slots)

    def at_sizes(self, environment: Mapping[str, int]) -> NativeCall:
        """The calls for the values of all symbols."""
        values = {**environment, **_values(self._described.expressions, environment)}
        return self._described.make(self._codes, self._constants, values)

    def environment(self, leaves: Sequence[Any]) -> dict[str, int]:
        """The values of the symbols; empty for arguments that do not fit."""
        sizes = self._described.sizes(leaves)
        return {} if sizes is None else dict(zip(self._names, sizes, strict=True))


def _hold(constraints: Sequence[str], environment: Mapping[str, int]) -> bool:
    """Whether all constraints hold. One that cannot be evaluated counts as violated (A5)."""
    if not constraints:
        return True
    from ..format import expressions

    try:
        return all(expressions.parse(text)(environment) for text in constraints)
    except expressions.UNDEFINED:
        return False


def _values(texts: Sequence[str], environment: Mapping[str, int]) -> dict[str, int]:
    if not texts:
        return {}
    from ..format import expressions  # few sizes are computed

    return {text: expressions.evaluate(text, environment) for text in texts}

"""Calls of a method with compiled code for particular sizes. The sizes of a call select the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import InputError, Problem
from .autograd import Differentiable
from .call import MethodCall
from .loaded_method import LoadedMethod


class SpecializedCall(MethodCall):
    """A method with code for several sets of sizes.

    Args:
        calls: the method with each variant of its code.
        sizes: a value for every symbol of the method, for each of ``calls``.
    """

    def __init__(self, loaded: LoadedMethod, calls: Sequence[MethodCall], sizes: Sequence[Mapping[str, int]]) -> None:
        super().__init__(loaded, calls[0].forward, native=True)
        self._names = [symbol.name for symbol in loaded.method.symbols]
        self._calls = {tuple([values[name] for name in self._names]): call for values, call in zip(sizes, calls, strict=True)}

    def bridges(self) -> list[Differentiable]:
        """The connections to autograd for all sizes."""
        return [bridge for call in self._calls.values() for bridge in call.bridges()]

    def run(self, primals: list[torch.Tensor], environment: dict[str, int]) -> list[Any]:
        """Run the code for the sizes of this call.

        Raises:
            InputError: there is none; lists the sizes that have code. Nothing was run.
        """
        sizes = tuple([environment[name] for name in self._names])
        call = self._calls.get(sizes)
        if call is None:
            raise InputError(
                f"The bundle has no code for {self._show(sizes)} on this device; {self.name!r} has it for:",
                [Problem(self._show(known), "") for known in sorted(self._calls)],
                hint="Pass arguments of these sizes (pad them, for example), or build with --specialize for further ones.",
            )
        return call.run(primals, environment)

    def _show(self, sizes: Sequence[int]) -> str:
        labels = [symbol.label or symbol.name for symbol in self.method.symbols]
        shown = [f"{label}={size}" for label, size in zip(labels, sizes, strict=True)]
        return ",".join(dict.fromkeys(shown))  # one size may be several symbols

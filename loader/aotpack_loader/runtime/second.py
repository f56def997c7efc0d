"""Gradients that can be differentiated again. A second method computes them from the primals of the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..devices.generator import exchange_random_state, random_state
from ..errors import AutogradError, Problem
from ..format import schema
from .names import primal_name

Run = Callable[[tuple[Any, ...], dict[str, Any], Mapping[str, torch.Tensor]], Any]
Before = tuple[list[int], torch.Tensor | None]
"""What has to be as it was: versions of the primals, and the random state before the forward."""


class SecondDerivative:
    """Computes a method's gradients with an autograd graph of their own.

    Args:
        first: the method whose gradients they are.
        convention: how its backward names the second method.
        run: calls the second method with arguments and state.
        device: where they run.
    """

    def __init__(self, first: schema.Method, convention: schema.Second, run: Run, device: torch.device) -> None:
        self._run, self._random, self._device = run, convention.random, device
        self._depends = [frozenset(tangents) for tangents in convention.depends]
        self._autocast: torch.dtype | None = None if first.autocast is None else getattr(torch, first.autocast)
        positions = {p.leaf: i for i, p in enumerate(first.primals) if isinstance(p, schema.InputPrimal)}
        self._leaves = [positions[leaf] for leaf in sorted(positions)]
        kinds = (schema.ParameterPrimal, schema.BufferPrimal)
        self._state = {p.name: i for i, p in enumerate(first.primals) if isinstance(p, kinds)}
        overwritten = {mutation.primal for mutation in first.mutations}
        self._watched = [i for i in range(len(first.primals)) if i not in overwritten]
        self._names = [primal_name(primal, first) for primal in first.primals]

    def before(self, primals: Sequence[torch.Tensor]) -> Before:
        """Version counters and generator state, to be taken before the forward runs."""
        return [primals[i]._version for i in self._watched], random_state(self._device) if self._random else None

    def __call__(
        self, primals: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor], received: set[int], before: Before
    ) -> list[Any]:
        """The gradients of the primals that have one, in order. Tangents that are not ``received`` are zeros.

        Raises:
            AutogradError: a primal was changed in place since the forward.
        """
        versions, generator = before
        changed = [self._names[i] for i, version in zip(self._watched, versions, strict=True) if primals[i]._version != version]
        if changed:
            raise AutogradError(
                "Derivatives of gradients are taken from the inputs of the call, and these were changed in place since then.",
                [Problem(name, "was changed") for name in changed],
                hint="Take them before the optimizer's step, or clone what has to be changed.",
            )
        # A primal that only missing tangents reach gets no gradient rather than zeros.
        idle = [bool(self._depends) and not self._depends[i] & received for i in range(len(primals))]
        primals = [primal.detach() if skip else primal for primal, skip in zip(primals, idle, strict=True)]
        arguments = (*tangents, *[primals[i] for i in self._leaves])
        state = {name: primals[i] for name, i in self._state.items()}
        dtype = torch.get_autocast_dtype(self._device.type) if self._autocast is None else self._autocast
        with torch.autocast(self._device.type, dtype=dtype, enabled=self._autocast is not None):
            if generator is None:
                return list(self._run(arguments, {}, state))
            current = exchange_random_state(generator, self._device)
            try:
                return list(self._run(arguments, {}, state))
            finally:
                exchange_random_state(current, self._device)

"""Compares one call of a bundle with eager, and looks closer where they differ."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from typing import Final

import torch

from .eager import Eager, Example, same_draws
from .observation import Observation, differences
from .rounding import Moved, is_equal, is_rounding, value_at

_NUDGES = (0, 1, 1, 8, 8, 8, 8, 8, 8)
"""By how many roundings the results of eager's further runs move at most, until they explain the difference."""


class Reference:
    """Eager's results for an example, and what is asked of eager only where a bundle differs.

    ``unlike`` are results that depend on random numbers which the bundle draws otherwise. Without ``may_draw``
    the model draws none, and whatever moves the default generator is another thread.
    """

    def __init__(self, eager: Eager, example: Example, *, same_numbers: bool, may_draw: bool = True) -> None:
        self.plain = eager.run(example)
        if "use_reentrant=True" in str(self.plain.error):
            eager = replace(eager, call=replace(eager.call, anywhere=True))
            self.plain = eager.run(example)
        self.eager, self.example = eager, example
        moved = bool(self.plain.generator) and not torch.equal(self.plain.generator[-1], _start())
        self.draws = moved and may_draw
        if moved and not may_draw:  # another thread did
            self.plain.generator.clear()
        self.unlike: Collection[str] = frozenset()
        if self.draws and not same_numbers and self.plain.error is None:
            self.unlike = _unequal(self.plain, eager.run(example, seed=1))

    @cached_property
    def exact(self) -> Observation | None:
        """Eager in float64 with the same random numbers, if it runs."""
        seen = self.eager.run_in_double(self.example)
        return seen if seen is not None and (not self.draws or same_draws(seen, self.plain)) else None

    def differences(self, bundle: Observation) -> list[str]:
        """What a caller sees of the bundle that differs from eager by more than rounding."""
        unequal: set[str] = set()

        def equal(path: str, ours: torch.Tensor, theirs: torch.Tensor) -> bool:
            if path not in self.unlike and not is_equal(ours, theirs):
                unequal.add(path)
            return path not in unequal

        found = _lines(differences(self.plain, bundle, equal))
        if not unequal:
            return found
        left = unequal
        moved: Moved = []
        for seed, roundings in enumerate(_NUDGES):
            if not left:
                break
            seen = self.eager.run_nudged(self.example, seed, roundings)
            if seen.error is None and (not self.draws or same_draws(seen, self.plain)):
                moved.append((roundings, {path: value_at(seen, path) for path in left}))
            if roundings:
                left = {path for path in left if not is_rounding(path, self.plain, bundle, self.exact, moved)}
        return _lines(differences(self.plain, bundle, lambda path, ours, theirs: path not in left))


def _start() -> torch.Tensor:
    return torch.Generator().manual_seed(0).get_state()


def _unequal(one: Observation, other: Observation) -> set[str]:
    found: set[str] = set()

    def note(path: str, ours: torch.Tensor, theirs: torch.Tensor) -> bool:
        if not torch.equal(ours, theirs):
            found.add(path)
        return True

    differences(one, other, note)
    return found


_NO_FAULT: Final = re.compile(
    r": version counter moved in|: state\.\S+\._base is state\.\S+$|\.(conj|neg): eager \w+, bundle \w+$"
)
"""BatchNorm and control flow count versions otherwise. Loading state, as torch does it, makes views of no base.
No result has a lazy flag of its argument (spec, A4)."""


def _lines(found: list[str]) -> list[str]:
    """Differences that are faults."""
    return [line for line in found if not _NO_FAULT.search(line)]

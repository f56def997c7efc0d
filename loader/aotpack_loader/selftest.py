"""The self-test of a bundle: loads it, runs its recorded inputs and compares with eager's results."""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import partial

from .loading import load
from .replay import SelfTestReport, observe, random_inputs, recorded_inputs, replay, stored_as


def run_self_test(
    path: str | os.PathLike[str],
    backend: str | None = None,
    trust: str | Collection[str] | None = None,
    operators: Collection[str] = (),
    subclasses: Collection[type] = (),
) -> SelfTestReport:
    """Load the bundle, run one step with its recorded inputs and compare. Arguments are those of :func:`load`.

    Raises:
        TargetError, TrustError: ``backend`` cannot run here.
        SubclassError: it holds tensors of a class that is not among ``subclasses``.
    """
    again = partial(load, path, backend=backend, trust=trust, operators=operators, subclasses=subclasses)
    return replay(path, again, subclasses)


__all__ = ["SelfTestReport", "observe", "random_inputs", "recorded_inputs", "run_self_test", "stored_as"]

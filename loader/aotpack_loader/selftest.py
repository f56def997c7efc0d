"""The self-test of a bundle: loads it, runs its recorded inputs and compares with eager's results."""

from __future__ import annotations

import os
from collections.abc import Collection

from .errors import BundleError
from .module.program import LoadedProgram
from .opening.documents import load_with
from .options import LoadOptions
from .replay import SelfTestReport, observe, random_inputs, recorded_inputs, replay, stored_as


def run_self_test(
    path: str | os.PathLike[str],
    backend: str | None = None,
    trust: str | Collection[str] | None = None,
    operators: Collection[str] = (),
    subclasses: Collection[type] = (),
    *,
    policy: str | os.PathLike[str] | None = None,
    source: str = "",
    digest: str = "",
    device: str | None = None,
) -> SelfTestReport:
    """Load the bundle, run one step with its recorded inputs and compare. Arguments are those of :func:`load`.

    ``source`` is the name that policies match; empty: the path. ``digest`` is what the bundle must still have, if it is given.
    On another ``device`` than the CPU, random numbers are others than those of the build.

    Raises:
        BundleError: the bundle has another digest by now.
        TargetError, TrustError: ``backend`` cannot run here.
        SubclassError: it holds tensors of a class that is not among ``subclasses``.
    """
    options = LoadOptions(device, backend, trust=trust, operators=operators, subclasses=subclasses, policy=policy, source=source)
    options = options.checked()

    def load() -> LoadedProgram:
        module = load_with(path, options)[0]
        if digest and module.aotpack.digest != digest:
            raise BundleError(f"The bundle {os.fspath(path)!r} was replaced while it was checked.", hint="Check it again.")
        return module

    return replay(path, load, subclasses)


__all__ = ["SelfTestReport", "observe", "random_inputs", "recorded_inputs", "run_self_test", "stored_as"]

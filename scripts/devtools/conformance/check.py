"""Checks one sample: builds a bundle of it, loads it, and compares everything a caller can see with eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from functorch.compile import aot_function, min_cut_rematerialization_partition, nop

import aotpack
from aotpack.checking.observation import Observation
from aotpack_loader.errors import AotpackError, InputError

from .fresh import keep
from .observe import compare, given, observe, one_line
from .samples import Sample, together
from .sizes import at_other_sizes

STATUSES = ("pass", "refused", "raises", "wrong")
"""Refused at build; raises when called, where eager does not; differs from eager."""


@dataclass(frozen=True)
class Outcome:
    """The result for a sample.

    Args:
        status: one of :data:`STATUSES`, or ``skipped`` if eager itself raises an error.
        reason: one line, for any status but ``pass``.
        peer: for a sample that does not pass, torch's own result: ``works``, ``wrong`` or
            ``raises``. It comes from ``aot_function``, or for compiled code from ``torch.compile``.
    """

    sample: str
    status: str
    reason: str = ""
    peer: str = ""


class Checker:
    """Checks samples one after another.

    Args:
        folder: where bundles are written.
        dynamic: whether every size varies that the operator allows to vary.
        front_ends: as for a build.
        target: the target of the bundles.
        fresh: where bundles are stored for a new process to call.

    Attributes:
        loaded: the bundle of the last sample; None if it was not built, or from a changed sample.
    """

    def __init__(self, folder: Path, *, dynamic: bool, front_ends: Sequence[str], target: str, fresh: Path) -> None:
        self.path = folder / "sample.aotpack"
        self.dynamic = dynamic
        self.front_ends = front_ends
        self.target = target
        self.fresh = fresh
        self.loaded: torch.nn.Module | None = None

    def __call__(self, sample: Sample, keep_as: str = "") -> Outcome:
        """Build a bundle of one sample and call it. With ``keep_as``, store it under this name for a new process."""
        self.loaded = None
        eager = observe(sample.function, sample)
        changed = eager.error is not None and sample.requires_grad
        if changed:
            sample = sample.without_gradients()
            eager = observe(sample.function, sample)
        if eager.error is not None:
            return Outcome(sample.name, "skipped", one_line(eager.error))
        try:
            self.build(sample)
        except AotpackError as error:
            return Outcome(sample.name, "refused", one_line(error), self._peer(sample, eager))
        except Exception as error:
            return Outcome(sample.name, "refused", f"not by an error of ours: {one_line(error)}", self._peer(sample, eager))
        loaded = aotpack.load(self.path, backend=self.target)
        if keep_as:
            keep(sample, eager, self.path, self.target, self.fresh, keep_as)
        self.loaded = None if changed else loaded
        return self._compared(sample, eager, observe(loaded, sample))

    def passes(self, sample: Sample, keep_as: str = "") -> bool:
        """Whether a bundle of several samples :func:`together` equals eager, with gradients.

        If not, check each for the reason.
        """
        self.loaded = None
        eager = observe(sample.function, sample)
        if eager.error is not None:
            return False
        try:
            self.build(sample)
        except Exception:
            return False
        loaded = aotpack.load(self.path, backend=self.target)
        bundle = observe(loaded, sample)
        if bundle.error is not None or self._differences(sample, eager, bundle):
            return False
        if keep_as:
            keep(sample, eager, self.path, self.target, self.fresh, keep_as)
        self.loaded = loaded
        return True

    def again(self, sample: Sample, *, made: bool = False) -> Outcome | None:
        """Call the last bundle with a sample that it was not built from.

        None if it refuses the sample, as it must other sizes.

        If the sample is ``made`` from another, strides are not compared. At sizes of 1 several
        layouts may fit.
        """
        assert self.loaded is not None
        bundle = observe(self.loaded, sample)
        if isinstance(bundle.error, InputError):
            return None
        eager = observe(sample.function, sample)
        return self._compared(sample, eager, bundle, made=made) if eager.error is None else None

    def where_eager_may_raise(self, sample: Sample) -> Outcome:
        """Call the last bundle with a sample of the same sizes, on which it must raise an error if eager does."""
        assert self.loaded is not None
        eager, bundle = observe(sample.function, sample), observe(self.loaded, sample)
        if eager.error is None:
            return self._compared(sample, eager, bundle)
        if bundle.error is None:
            return Outcome(sample.name, "wrong", f"eager raises {one_line(eager.error)}", self._peer(sample, eager))
        return Outcome(sample.name, "pass")

    def resized(self, samples: Sequence[Sample]) -> Outcome | None:
        """Call the last bundle, built of ``samples``, with other sizes that it accepts.

        Returns the first outcome that fails.
        """
        if not self.dynamic:
            return None
        for sizes, others in at_other_sizes(samples, self.path, self.target):
            outcome = self.again(together(others), made=True)
            if outcome is not None and outcome.status != "pass":
                recorded = ", ".join(f"{name}={size}" for name, size in sizes.items())
                return replace(outcome, reason=f"with {recorded}: {outcome.reason}"[:600])
        return None

    def _compared(self, sample: Sample, eager: Observation, bundle: Observation, *, made: bool = False) -> Outcome:
        if bundle.error is not None:
            return Outcome(sample.name, "raises", f"in {bundle.phase}: {one_line(bundle.error)}", self._peer(sample, eager))
        found = self._differences(sample, eager, bundle, made=made)
        if found := [line for line in found if not (made and ".stride: " in line)]:
            return Outcome(sample.name, "wrong", "; ".join(found[:4])[:600], self._peer(sample, eager))
        return Outcome(sample.name, "pass")

    def build(self, sample: Sample) -> None:
        """Build a bundle of the sample, with the one method that is called."""
        tensors = given(sample)[0]
        auto = torch.export.Dim.AUTO
        sizes = [{dim: auto for dim, size in enumerate(tensor.shape) if size > 1} for tensor in tensors]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            aotpack.build(
                sample.function,
                tuple(tensors),
                out=self.path,
                targets=(self.target,),
                methods=("train",),
                dynamic_shapes=sizes if self.dynamic and any(sizes) else None,
                front_ends=self.front_ends,
                rng="default" if self.target == "portable" else "eager",  # portable always draws eager's numbers
                cache=False,
                check=False,  # :meth:`_compared` does the same, for more samples
            )

    def _peer(self, sample: Sample, eager: Observation) -> str:
        """The result of torch itself for a sample."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = observe(self._torchs(sample.function), sample)
        if found.error is not None:
            return f"raises {one_line(found.error)}"
        return "wrong" if self._differences(sample, eager, found) else "works"

    def _torchs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.target == "portable":
            partition = min_cut_rematerialization_partition
            return aot_function(function, nop, nop, partition, dynamic=self.dynamic, keep_inference_input_mutations=True)
        torch.compiler.reset()
        return torch.compile(function, dynamic=self.dynamic, options={"fallback_random": True})

    def _differences(self, sample: Sample, eager: Observation, other: Observation, *, made: bool = False) -> list[str]:
        return compare(sample, eager, other, compiled=self.target != "portable", made=made)

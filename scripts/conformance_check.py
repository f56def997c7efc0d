"""One sample: build a bundle of it, load it, compare with eager all that a caller can see."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from conformance_fresh import keep
from conformance_observe import compare, given, observe, one_line
from conformance_samples import Sample
from functorch.compile import aot_function, min_cut_rematerialization_partition, nop

import aotpack
from aotpack_loader.errors import AotpackError, InputError
from tests.conformance.observe import Observation

STATUSES = ("pass", "refused", "raises", "wrong")
"""Refused at build; raises when called, where eager does not; differs from eager."""


@dataclass(frozen=True)
class Outcome:
    """What became of a sample.

    Args:
        status: one of :data:`STATUSES`, or ``skipped`` where eager itself raises.
        reason: of any other status than ``pass``, in a line.
        aot: of a sample that does not pass: what torch's own ``aot_function`` makes of it, ``works``, ``wrong`` or ``raises``.
    """

    sample: str
    status: str
    reason: str = ""
    aot: str = ""


class Checker:
    """Checks samples one after another.

    Args:
        folder: where bundles are written.
        dynamic: every size may vary that the operator lets vary.
        front_ends: as for a build.
        fresh: where bundles are put by that a fresh process is to call.
    """

    def __init__(self, folder: Path, *, dynamic: bool, front_ends: Sequence[str], fresh: Path) -> None:
        self.path = folder / "sample.aotpack"
        self.dynamic = dynamic
        self.front_ends = front_ends
        self.fresh = fresh

    def __call__(self, sample: Sample, others: Sequence[Sample] = (), keep_as: str = "") -> Outcome:
        """Check one sample; ``others`` are samples among which are some that the same bundle must take, or refuse."""
        eager = observe(sample.function, sample)
        if eager.error is not None and sample.requires_grad:
            sample = sample.without_gradients()
            eager = observe(sample.function, sample)
        if eager.error is not None:
            return Outcome(sample.name, "skipped", one_line(eager.error))
        try:
            self.build(sample)
        except AotpackError as error:
            return Outcome(sample.name, "refused", one_line(error), self._aot(sample, eager))
        except Exception as error:
            return Outcome(sample.name, "refused", f"not by an error of ours: {one_line(error)}", self._aot(sample, eager))
        loaded = aotpack.load(self.path, backend="portable")
        for other in (sample, *[other for other in others if other.signature == sample.signature]):
            if other is not sample:
                eager = observe(other.function, other)
                if eager.error is not None:
                    continue
            bundle = observe(loaded, other)
            if other is not sample and isinstance(bundle.error, InputError):
                continue  # other sizes than this bundle was built for
            where = "" if other is sample else f"called as sample {other.name}: "
            if bundle.error is not None:
                reason = f"{where}in {bundle.phase}: {one_line(bundle.error)}"
                return Outcome(sample.name, "raises", reason, self._aot(other, eager))
            found = compare(other, eager, bundle)
            if other is sample and keep_as:
                keep(sample, eager, self.path, self.fresh, keep_as)
            if found:
                return Outcome(sample.name, "wrong", where + "; ".join(found[:4])[:600], self._aot(other, eager))
        return Outcome(sample.name, "pass")

    def build(self, sample: Sample) -> None:
        """Write a bundle of the sample."""
        tensors = given(sample)[0]
        auto = torch.export.Dim.AUTO
        sizes = [{dim: auto for dim, size in enumerate(tensor.shape) if size > 1} for tensor in tensors]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            aotpack.build(
                sample.function,
                tuple(tensors),
                out=self.path,
                targets=("portable",),
                dynamic_shapes=sizes if self.dynamic and any(sizes) else None,
                front_ends=self.front_ends,
                cache=False,
            )

    def _aot(self, sample: Sample, eager: Observation) -> str:
        """What torch's own AOTAutograd makes of a sample."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = aot_function(
                sample.function,
                nop,
                nop,
                min_cut_rematerialization_partition,
                dynamic=self.dynamic,
                keep_inference_input_mutations=True,
            )
            found = observe(compiled, sample)
        if found.error is not None:
            return f"raises {one_line(found.error)}"
        return "wrong" if compare(sample, eager, found) else "works"

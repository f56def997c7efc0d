"""The process that checks samples: reads a unit a line from stdin, writes what it begins and what became of it to stdout."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from conformance_check import Checker, Outcome
from conformance_observe import one_line
from conformance_samples import DATABASES, Sample, Unit, database, samples

from aotpack.capture import FRONT_ENDS

OTHERS = 2
"""How many further samples each bundle is called with, where they differ in values or sizes only."""


def serve(folder: Path, *, limit: float, count: int | None) -> None:
    """Check units until stdin ends. ``limit`` in seconds ends a unit early; ``count`` samples of each variant at most.

    The first bundle of each unit and variant is put by, beside ``folder``, for a fresh process: not those of custom operators,
    whose packages that process does not have.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what operators print is not for the driver

    def tell(**words: object) -> None:
        answers.write(json.dumps(words) + "\n")

    torch.set_num_threads(1)
    for name in DATABASES:
        database(name)
    gc.collect()
    gc.freeze()  # a collection walks all that importing torch has left: 0.3 s, several times an operator
    tell(ready=True)
    for line in sys.stdin:
        told = json.loads(line)
        unit = Unit(**told["unit"])
        start = time.monotonic()
        # Dynamo adds nothing to a call of one operator, and takes seconds; control flow needs it.
        front_ends = FRONT_ENDS if unit.database == "hop_db" else ("trace",)
        check = Checker(folder, dynamic=unit.dynamic, front_ends=front_ends, fresh=folder.parent / "fresh")
        try:
            every = list(samples(unit))
        except Exception as error:
            tell(**asdict(Outcome("all", "skipped", f"no samples: {one_line(error)}")))
            every = []
        for i, sample in enumerate(every := spread(every, count)):
            if sample.name in told["done"]:
                continue
            if time.monotonic() - start > limit:
                tell(**asdict(Outcome(f"{sample.name} and later", "skipped", f"{len(every) - i} left out after {limit:.0f} s")))
                break
            tell(begin=sample.name)
            first = unit.database != "custom_op_db" and (i == 0 or every[i - 1].in_place != sample.in_place)
            others = every[i + 1 : i + 1 + OTHERS] + every[max(0, i - 1) : i]
            tell(**asdict(check(sample, others, keep_as=f"{unit}/{sample.name}" if first else "")))
        tell(end=str(unit))


def spread(every: Sequence[Sample], count: int | None) -> list[Sample]:
    """At most ``count`` samples of each variant, evenly."""
    kinds = [[s for s in every if s.in_place == kind] for kind in (False, True)]
    counts = [len(kind) if count is None else min(count, len(kind)) for kind in kinds]
    return [kind[i * len(kind) // chosen] for kind, chosen in zip(kinds, counts, strict=True) for i in range(chosen)]

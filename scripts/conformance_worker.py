"""The process that checks samples: reads a unit a line from stdin, writes what it begins and what became of it to stdout."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from conformance_check import Checker, Outcome
from conformance_observe import one_line
from conformance_samples import DATABASES, Sample, Unit, database, samples

from aotpack.capture import FRONT_ENDS

OTHERS = 2
"""How many samples of other sizes a bundle of static sizes is called with, which it must refuse."""


def serve(folder: Path, *, limit: float, count: int | None) -> None:
    """Check units until stdin ends. ``limit`` in seconds ends a unit early; ``count`` samples of each variant at least.

    Samples that differ in values only share a build, with dynamic sizes also those that differ in sizes: where the bundle takes
    them, they are checked with it, beyond ``count`` too.

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
        work(Unit(**told["unit"]), set(told["done"]), folder, tell, limit=limit, count=count)
        tell(end=True)


def work(unit: Unit, done: set[str], folder: Path, tell: Callable[..., None], *, limit: float, count: int | None) -> None:
    """Check the samples of a unit that are not ``done``, and ``tell`` how many there are, and what becomes of each."""
    start = time.monotonic()
    # Dynamo adds nothing to a call of one operator, and takes seconds; control flow needs it.
    front_ends = FRONT_ENDS if unit.database == "hop_db" else ("trace",)
    fresh = folder.parent / "fresh"
    check = Checker(folder, dynamic=unit.dynamic, front_ends=front_ends, target=unit.target, fresh=fresh)
    try:
        every = list(samples(unit))
    except Exception as error:
        tell(**asdict(Outcome("all", "skipped", f"no samples: {one_line(error)}")))
        return
    tell(total=len(every))
    first = {sample.in_place: sample for sample in reversed(every) if unit.database != "custom_op_db"}
    for sample in spread(every, count):
        if sample.name in done:
            continue
        if time.monotonic() - start > limit:
            break
        tell(begin=sample.name)
        keep_as = f"{unit}/{sample.name}" if first.get(sample.in_place) is sample else ""
        tell(**asdict(check(sample, keep_as)))
        done.add(sample.name)
        if check.loaded is None:
            continue
        for other in alike(sample, every, done, dynamic=unit.dynamic):
            tell(begin=other.name)
            outcome = check.again(other)
            if outcome is not None:
                tell(**asdict(outcome))
                done.add(other.name)


def alike(sample: Sample, every: Sequence[Sample], done: Collection[str], *, dynamic: bool) -> list[Sample]:
    """What to call the bundle of ``sample`` with: samples not done that differ from it in values, and in sizes, only."""
    others = [other for other in every if other.signature == sample.signature and other.name not in done]
    if dynamic:
        return others
    same = [other for other in others if other.sizes == sample.sizes]
    return same + [other for other in others if other.sizes != sample.sizes][:OTHERS]


def spread(every: Sequence[Sample], count: int | None) -> list[Sample]:
    """``count`` samples of each variant, evenly; those of a smaller count come first."""
    kinds = [[s for s in every if s.in_place == kind] for kind in (False, True)]
    return [kind[i] for kind in kinds for i in sorted(range(len(kind)), key=_reversed_bits)[:count]]


def _reversed_bits(number: int) -> str:
    return f"{number:032b}"[::-1]

"""The process that checks samples. It reads units from stdin, one a line, and writes starts and outcomes to stdout."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from aotpack.capture import FRONT_ENDS

from .check import Checker, Outcome
from .observe import observe, one_line
from .samples import DATABASES, Sample, Unit, database, samples, together
from .values import unusual

OTHERS = 2
"""How many samples of other sizes a bundle of static sizes is called with, which it must refuse."""


def serve(folder: Path, *, limit: float, count: int | None, size: int, values: bool) -> None:
    """Check units until stdin ends.

    ``limit`` is the time for a unit in seconds. ``count`` is the minimum of samples per variant.

    Samples that differ only in values share a build; with dynamic sizes also those that differ in
    sizes. If the bundle accepts them, they are checked with it, also beyond ``count``. ``size``
    samples of the units of a line share one bundle, which saves time for compiled code. A bundle
    that does not pass is halved until each sample is alone. With ``values``, bundles are also called
    with unusual values.

    The first bundle of each unit and variant is stored beside ``folder`` for a new process. Custom
    operators are excluded, because that process lacks their packages.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keeps the output of operators away from the driver

    def report(**words: object) -> None:
        answers.write(json.dumps(words) + "\n")

    torch.set_num_threads(1)
    for name in DATABASES:
        database(name)
    gc.collect()
    gc.freeze()  # a collection would walk all objects of torch: 0.3 s, several times for an operator
    report(ready=True)
    for line in sys.stdin:
        recorded = json.loads(line)
        units = [Unit(**unit) for unit in recorded["units"]]
        until = time.monotonic() + limit * len(units)
        done = recorded["done"]
        works = [
            BuildContext(unit, set(done[str(unit)]), folder, report, count=count, until=until, values=values) for unit in units
        ]
        tried = {(unit, name) for unit, name in recorded["tried"]}
        while (group := next_group(works, tried, size)) is not None:
            several(group)
        for work in works:
            work.alone()
        report(end=True)


class BuildContext:
    """The work on the samples of a unit. ``report`` gets the number of samples and the outcome of each.

    Attributes:
        every: all samples.
        chosen: the samples to check, in this order. Some of them also give the outcome of others.
        done: names of the samples with an outcome, from earlier processes too.
    """

    def __init__(
        self,
        unit: Unit,
        done: set[str],
        folder: Path,
        report: Callable[..., None],
        *,
        count: int | None,
        until: float,
        values: bool,
    ) -> None:
        self.values = values
        self.unit, self.done, self.report, self.until = unit, done, report, until
        # Dynamo adds nothing for a call of one operator, and takes seconds. Control flow needs it.
        front_ends = FRONT_ENDS if unit.database == "hop_db" else ("trace",)
        fresh = folder.parent / "fresh"
        self.check = Checker(folder, dynamic=unit.dynamic, front_ends=front_ends, target=unit.target, fresh=fresh)
        self.every: list[Sample] = []
        try:
            self.every = list(samples(unit))
        except Exception as error:
            self.became("all", Outcome("all", "skipped", f"no samples: {one_line(error)}"))
        else:
            report(unit=str(unit), total=len(self.every))
        self.chosen = spread(self.every, count)
        self._first = {sample.in_place: sample for sample in reversed(self.every) if unit.database != "custom_op_db"}

    @property
    def late(self) -> bool:
        return time.monotonic() > self.until

    def alone(self) -> None:
        """Check each sample in a bundle of its own, together with the samples that share its build."""
        for sample in self.chosen:
            if sample.name in self.done:
                continue
            if self.late:
                break
            self.begin(sample)
            outcome = self.check(sample, self.keep_as(sample))
            if outcome.status == "pass" and self.unit.dynamic and self.check.loaded is not None:
                outcome = self.check.resized([sample]) or outcome
            self.became(sample.name, outcome)
            if self.check.loaded is None:
                continue
            if outcome.status == "pass":
                at_unusual_values([(self, sample)])
            for other in alike(sample, self.every, self.done, dynamic=self.unit.dynamic):
                self.begin(other)
                outcome = self.check.again(other)
                if outcome is not None:
                    self.became(other.name, outcome)

    def waiting(self) -> list[Sample]:
        """Samples that may share a bundle with others. Samples with the same build are represented by one."""
        left = [sample for sample in self.chosen if sample.name not in self.done and not sample.undefined]
        by_kind = {
            _built_as(sample, self.unit): sample for sample in reversed(left) if not any(map(torch.is_conj, sample.tensors))
        }
        return list(by_kind.values())[::-1]

    def turns(self, sample: Sample) -> list[Sample]:
        """A sample, and the others that its build serves."""
        kind = _built_as(sample, self.unit)
        others = [other for other in self.every if other.name not in self.done and _built_as(other, self.unit) == kind]
        return [sample, *(other for other in others if other is not sample)]

    def begin(self, sample: Sample) -> None:
        """Report the start of a sample, so that the driver knows what a process died of."""
        self.report(begin=[[str(self.unit), sample.name]])

    def became(self, name: str, outcome: Outcome) -> None:
        """Report the outcome of a sample, once."""
        if name not in self.done:
            self.report(unit=str(self.unit), **asdict(outcome))
            self.done.add(name)

    def keep_as(self, sample: Sample) -> str:
        """The name under which a sample's bundle is stored for a new process; empty if it is not."""
        return f"{self.unit}/{sample.name}" if self._first.get(sample.in_place) is sample else ""


Pending = tuple[BuildContext, Sample]


def next_group(works: Sequence[BuildContext], tried: set[tuple[str, str]], size: int) -> list[Pending] | None:
    """Up to ``size`` samples to build in one bundle, without those that eager refuses. They are added to ``tried``."""
    pairs = [(work, sample) for work in works for sample in work.waiting() if (str(work.unit), sample.name) not in tried][:size]
    if size < 2 or len(pairs) < 2 or works[0].late:
        return None
    tried.update((str(work.unit), sample.name) for work, sample in pairs)
    return [(work, sample) for work, sample in pairs if observe(sample.function, sample).error is None]


def several(group: Sequence[Pending]) -> None:
    """Check samples in one bundle, with others that share their build.

    If it fails it is halved. None is checked alone here.
    """
    first = group[0][0]
    if len(group) < 2 or first.late:
        return
    first.report(begin=[(str(work.unit), sample.name) for work, sample in group])
    keep_as = next((name for work, sample in group if (name := work.keep_as(sample))), "")
    built = [sample for _, sample in group]
    if not (first.check.passes(together(built), keep_as) and first.check.resized(built) is None):
        half = len(group) // 2
        several(group[:half])
        several(group[half:])
        return
    at_unusual_values(group)
    turns = [work.turns(sample) for work, sample in group]
    for turn in range(max(map(len, turns))):
        now = [own[turn] if turn < len(own) else own[0] for own in turns]
        outcome = first.check.again(together(now)) if turn else Outcome("", "pass")
        if outcome is not None and outcome.status == "pass":
            for (work, _), sample in zip(group, now, strict=True):
                work.became(sample.name, Outcome(sample.name, "pass"))


def at_unusual_values(group: Sequence[Pending]) -> None:
    """Call the last bundle, built of the group's samples, with unusual values in one of them at a time."""
    check = group[0][0].check
    for i, (work, sample) in enumerate(group):
        for changed in unusual(sample) if work.values else ():
            others = [other for _, other in group]
            outcome = check.where_eager_may_raise(together([*others[:i], changed, *others[i + 1 :]]))
            work.became(changed.name, replace(outcome, sample=changed.name))


def _built_as(sample: Sample, unit: Unit) -> str:
    """A key that is equal for samples that may share a build."""
    return sample.signature if unit.dynamic else f"{sample.signature} {sample.sizes}"


def alike(sample: Sample, every: Sequence[Sample], done: Collection[str], *, dynamic: bool) -> list[Sample]:
    """Samples to call the bundle of ``sample`` with: not done yet, and different only in values and sizes."""
    others = [other for other in every if other.signature == sample.signature and other.name not in done]
    if dynamic:
        return others
    same = [other for other in others if other.sizes == sample.sizes]
    return same + [other for other in others if other.sizes != sample.sizes][:OTHERS]


def spread(every: Sequence[Sample], count: int | None) -> list[Sample]:
    """``count`` samples of each variant, evenly distributed. The order starts with those of a smaller count."""
    kinds = [[s for s in every if s.in_place == kind] for kind in (False, True)]
    return [kind[i] for kind in kinds for i in sorted(range(len(kind)), key=_reversed_bits)[:count]]


def _reversed_bits(number: int) -> str:
    return f"{number:032b}"[::-1]

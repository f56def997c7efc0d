"""The outcomes of sweeps so far, and the file that stores them between runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

Outcome = dict[str, str]


@dataclass
class Found:
    """Outcomes of samples, of one or several runs.

    Args:
        outcomes: by unit and sample. A later run replaces an earlier outcome.
        totals: number of samples of a unit, including those that were not run.
    """

    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> Found:
        """Read a file with one line for each unit of a run (``unit``, ``total``, ``outcomes``)."""
        found = Found()
        for line in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
            found.add(line["unit"], line["total"], line["outcomes"])
        return found

    def add(self, unit: str, total: int, outcomes: Iterable[Outcome]) -> None:
        """Add outcomes for samples of a unit."""
        self.totals[unit] = total
        self.outcomes.setdefault(unit, {}).update({outcome["sample"]: outcome for outcome in outcomes})

    def names(self, unit: str) -> list[str]:
        """The samples of a unit that have an outcome."""
        return list(self.outcomes.get(unit, ()))

    def complete(self, unit: str) -> bool:
        """Whether every sample of a unit has an outcome."""
        return unit in self.totals and len(self.outcomes[unit]) >= self.totals[unit]

    def settled(self) -> Found:
        """The outcomes without failures, so that the failed samples run again."""
        kept = {
            unit: {name: outcome for name, outcome in outcomes.items() if outcome["status"] in ("pass", "skipped")}
            for unit, outcomes in self.outcomes.items()
        }
        return Found(kept, dict(self.totals))

"""What sweeps have found so far, and the file that holds it between runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Outcome = dict[str, str]


@dataclass
class Found:
    """Outcomes of samples, of one run or several.

    Args:
        outcomes: by unit and sample; a later run's replaces an earlier one's.
        totals: how many samples there are of a unit, those not run included.
        fresh: how many bundles fresh processes have called, and what differed, by bundle.
    """

    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    fresh: dict[str, Any] = field(default_factory=lambda: {"bundles": 0, "wrong": {}})

    @staticmethod
    def read(path: Path) -> Found:
        """From a file of lines, each a unit of a run (``unit``, ``total``, ``outcomes``) or what a fresh process found."""
        found = Found()
        for line in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
            if "fresh" in line:
                found.add_fresh(line["fresh"])
            else:
                found.add(line["unit"], line["total"], line["outcomes"])
        return found

    def add(self, unit: str, total: int, outcomes: Iterable[Outcome]) -> None:
        """What became of samples of a unit."""
        self.totals[unit] = total
        self.outcomes.setdefault(unit, {}).update({outcome["sample"]: outcome for outcome in outcomes})

    def add_fresh(self, fresh: dict[str, Any]) -> None:
        """What a fresh process found."""
        self.fresh = {"bundles": self.fresh["bundles"] + fresh["bundles"], "wrong": self.fresh["wrong"] | fresh["wrong"]}

    def names(self, unit: str) -> list[str]:
        """Samples of a unit that have an outcome."""
        return list(self.outcomes.get(unit, ()))

    def complete(self, unit: str) -> bool:
        """Whether every sample of a unit has an outcome."""
        return unit in self.totals and len(self.outcomes[unit]) >= self.totals[unit]

    def settled(self) -> Found:
        """Without what did not pass, so that it is done anew."""
        kept = {
            unit: {name: outcome for name, outcome in outcomes.items() if outcome["status"] in ("pass", "skipped")}
            for unit, outcomes in self.outcomes.items()
        }
        return Found(kept, dict(self.totals), dict(self.fresh))

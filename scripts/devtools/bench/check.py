"""Compares a fresh run of steps with the committed results, and prints the rows that changed beyond noise.

    scripts/bench/check                          measures the networks again, and compares
    scripts/bench/check --networks lstm graph    some of them
    scripts/bench/check --fresh run.json         compares a run that exists, of all networks or of some

Rows that a partial run took over from older results are left out.
What is compared is a row's ratio to the faster of eager and torch.compile, so another machine's
speed does not count. A row's noise is how far the ratios to torch.compile of its rounds are apart,
between their quartiles if a run has them, of both runs; 5 % at least. Exits with 1 if a row is
slower beyond that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devtools.machine import row_measured_on
from devtools.paths import RESULTS

_LEAST_NOISE = 0.05


@dataclass(frozen=True)
class Change:
    """A row whose ratio to the faster contender changed; ``noise`` is relative, as ``change`` is.

    ``measured`` says when the committed row was measured, and at which load.
    """

    row: str
    before: float
    after: float
    noise: float
    measured: str = ""

    @property
    def change(self) -> float:
        return self.after / self.before - 1

    @property
    def is_beyond_noise(self) -> bool:
        return abs(self.change) > self.noise

    def __str__(self) -> str:
        since = f", before: {self.measured}" if self.measured else ""
        return f"{self.row}: {self.before:.2f} -> {self.after:.2f} ({self.change:+.0%}, noise {self.noise:.0%}{since})"


def changes(committed: Mapping[str, Any], fresh: Mapping[str, Any]) -> list[Change]:
    """The rows that both results have and that were measured again, with their ratios."""
    found = []
    for row, after in fresh["cases"].items():
        before = committed["cases"].get(row, {})
        if after != before and "ratio_to_better" in before and "ratio_to_better" in after:
            noise = max(_LEAST_NOISE, _spread(before), _spread(after))
            found.append(Change(row, before["ratio_to_better"], after["ratio_to_better"], noise, row_measured_on(before)))
    return found


def failures(committed: Mapping[str, Any], fresh: Mapping[str, Any]) -> list[str]:
    """The rows that worked in the committed results, and fail now."""
    worked = [row for row, before in committed["cases"].items() if "ratio_to_better" in before]
    return [row for row in worked if "failed" in fresh["cases"].get(row, {})]


def _spread(row: Mapping[str, Any]) -> float:
    """How far a row's ratios of rounds are apart, relative to their median: half the distance of the quartiles."""
    low, high = row["ratio_quartiles" if "ratio_quartiles" in row else "ratio_range"]["cpu"]
    return float((high - low) / 2 / row["ratio_to_compile"]["cpu"])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench/check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fresh", type=Path, help="results of a run that exists")
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="measure these alone")
    options = parser.parse_args()
    committed = json.loads((RESULTS / "networks.json").read_text())
    fresh = json.loads(options.fresh.read_text()) if options.fresh else _measured(options.networks)
    found = changes(committed, fresh)
    beyond = [change for change in found if change.is_beyond_noise]
    for change in sorted(beyond, key=lambda change: -change.change):
        print(change)
    failed = failures(committed, fresh)
    for row in failed:
        print(f"{row}: failed: {fresh['cases'][row]['failed']}")
    print(f"{len(found)} rows compared, {len(beyond)} beyond noise, {len(failed)} failed")
    sys.exit(bool(failed) or any(change.change > 0 for change in beyond))


def _measured(networks: list[str] | None) -> dict[str, Any]:
    from devtools.bench.sections.networks import cases

    with tempfile.TemporaryDirectory(prefix="aotpack-check-") as folder:
        path = Path(folder) / "networks.json"
        names = networks or list(cases())
        words = ["--only", "networks", "--networks", *names, "--results", folder]
        subprocess.run([sys.executable, "-m", "devtools.bench", *words], check=True)
        fresh: dict[str, Any] = json.loads(path.read_text())
        return fresh


if __name__ == "__main__":
    main()

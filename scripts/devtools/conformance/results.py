"""Stores the results for every unit, from runs on any machine, in two files that later runs extend.

``conformance.json`` has the rows of the table, and the reasons of failures.
``conformance_units.json`` beside it has a line for each operator, with its units. A unit has the
number of its samples if all pass, or else counts by status.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from devtools.machine import provenance

from .found import Found
from .samples import DATABASES, DTYPES

STATUSES = ("pass", "refused", "raises", "wrong", "crash")
COUNTS = (*STATUSES, "skipped", "left")
"""Of a unit's samples: those that eager takes by status, those that eager itself refuses, and those not run."""

REASON = 300
"""Characters of a reason that are kept."""


class Kind(NamedTuple):
    """Why samples did not pass, and the result of the peer.

    The peer is torch's ``aot_function``, or for compiled code torch's compiler.
    """

    status: str
    reason: str
    peer: str


@dataclass(frozen=True)
class Known:
    """The results for a unit's samples: counts by status, and reasons of those that did not pass."""

    counts: Counter[str]
    kinds: Counter[Kind]

    @property
    def complete(self) -> bool:
        return not self.counts["left"]

    @property
    def settled(self) -> bool:
        """Whether all samples passed that eager accepts."""
        return self.complete and self.counts["pass"] + self.counts["skipped"] == self.counts.total()


@dataclass
class Results:
    """The results of all runs.

    Args:
        units: by name: ``database/operator/type/sizes``, and the target's name if it is not
            ``portable``.
        fresh: number of bundles that new processes have called, and differences by bundle.
        source: machine, versions and date of the last run.
        first: date of the first run.
        older: rows of runs without counts by unit. Each is kept until units with as many samples
            are known.
    """

    units: dict[str, Known] = field(default_factory=dict)
    fresh: dict[str, Any] = field(default_factory=lambda: {"bundles": 0, "wrong": {}})
    source: dict[str, Any] = field(default_factory=lambda: provenance(threads=1))
    first: str = ""
    older: dict[str, Counter[str]] = field(default_factory=dict)

    @staticmethod
    def of(found: Found, fresh: dict[str, Any] | None = None) -> Results:
        """The results of runs on this machine, and of a new process if there was one."""
        results = Results() if fresh is None else Results(fresh=fresh)
        for unit, outcomes in found.outcomes.items():
            if outcomes:
                counts = Counter(outcome["status"] for outcome in outcomes.values())
                counts["left"] = max(found.totals[unit] - len(outcomes), 0)
                failed = [outcome for outcome in outcomes.values() if outcome["status"] != "pass"]
                kinds = Counter(Kind(one["status"], one["reason"][:REASON], one["peer"][:REASON]) for one in failed)
                results.units[unit] = Known(counts, kinds)
        return results

    @staticmethod
    def read(file: Path) -> Results:
        """Read the two files. Nothing is read if they are missing or belong to another torch."""
        results = Results()
        if not file.exists():
            return results
        recorded = json.loads(file.read_text())
        if recorded["versions"]["torch"] != results.source["versions"]["torch"]:
            return results
        kinds: dict[str, Counter[Kind]] = {}
        for operator, failures in recorded["failures"].items():
            for failure in failures:
                kind = Kind(failure["status"], failure["reason"], failure.get("peer", ""))
                for where, count in failure["samples"].items():
                    kinds.setdefault(_unit(operator, where), Counter())[kind] = count
        for operator, units in json.loads(_units_file(file).read_text()).items():
            for where, counts in units.items():
                unit = _unit(operator, where)
                counter = Counter(counts if isinstance(counts, dict) else {"pass": counts})
                results.units[unit] = Known(counter, kinds.get(unit, Counter()))
        source = {key: recorded.get(key, "") for key in results.source}
        older = {row: Counter(counts) for row, counts in recorded.get("older", {}).items()}
        return Results(results.units, recorded["fresh_process"], source, recorded["first"], older)

    def with_later(self, later: Results, done: Collection[str]) -> Results:
        """These results and ``later`` ones, combined.

        For each unit the results with more samples are used. With equal numbers the later ones are
        used, if that run has ``done`` the unit.
        """
        units = dict(self.units)
        for unit, known in later.units.items():
            left = units[unit].counts["left"] if unit in units else known.counts["left"] + 1
            if known.counts["left"] < left or (known.counts["left"] == left and unit in done):
                units[unit] = known
        stems = tuple(unit.replace("/", "-") + "-" for unit in done)
        wrong = {bundle: line for bundle, line in self.fresh["wrong"].items() if not bundle.startswith(stems)}
        fresh = {"bundles": self.fresh["bundles"] + later.fresh["bundles"], "wrong": wrong | later.fresh["wrong"]}
        return Results(units, fresh, later.source, self.first or self.source["date"], self.older)

    @property
    def operators(self) -> int:
        """Number of operators with results."""
        return len({_operator(unit)[0] for unit in self.units})

    @property
    def failed(self) -> bool:
        """Whether anything differs from eager."""
        return any(known.counts[status] for known in self.units.values() for status in ("raises", "wrong", "crash"))

    def write(self, file: Path) -> None:
        """Write the two files."""
        file.write_text(json.dumps(self.recorded(), indent=1) + "\n")
        operators: dict[str, dict[str, Any]] = {}
        for unit, known in sorted(self.units.items()):
            operator, where = _operator(unit)
            counts = {status: known.counts[status] for status in COUNTS if known.counts[status]}
            operators.setdefault(operator, {})[where] = counts["pass"] if list(counts) == ["pass"] else counts
        lines = [f"{json.dumps(operator)}: {json.dumps(units)}" for operator, units in operators.items()]
        _units_file(file).write_text("{\n" + ",\n".join(lines) + "\n}\n")

    def recorded(self) -> dict[str, Any]:
        """Everything to store: totals, totals for each row of the table, and for each failing operator the reasons."""
        rows = self.rows()
        older = {row: counts for row, counts in self.older.items() if rows[row] is counts}
        return {
            **self.source,
            "first": self.first or self.source["date"],
            "operators": self.operators,
            "fresh_process": self.fresh,
            "totals": {target: _with_total(counts) for target, counts in self.totals().items()},
            "rows": {row: _with_total(counts) for row, counts in rows.items()},
            **({"older": older} if older else {}),
            "failures": self._failures(),
        }

    def totals(self) -> dict[str, Counter[str]]:
        """Counts by target."""
        totals: dict[str, Counter[str]] = {}
        for row, counts in self.rows().items():
            totals.setdefault(target_of(row), Counter()).update(counts)
        return totals

    def rows(self) -> dict[str, Counter[str]]:
        """Counts by database, type, sizes and target. Operators known only in another such row count as not run."""
        samples: dict[str, dict[str, int]] = {}
        for unit, known in self.units.items():
            operator = _operator(unit)[0]
            of_type = samples.setdefault(_type(row_of(unit)), {})
            of_type[operator] = max(of_type.get(operator, 0), known.counts.total())
        rows: dict[str, Counter[str]] = {}
        seen: dict[str, int] = {}
        for unit, known in self.units.items():
            row = row_of(unit)
            rows.setdefault(row, Counter()).update(known.counts)
            seen[row] = seen.get(row, 0) + samples[_type(row)][_operator(unit)[0]]
        for row, counts in rows.items():
            counts["left"] += sum(samples[_type(row)].values()) - seen[row]
        rows |= {row: counts for row, counts in self.older.items() if row not in rows or counts["left"] < rows[row]["left"]}
        return dict(sorted(rows.items(), key=lambda item: _order(item[0])))

    def _failures(self) -> dict[str, list[dict[str, Any]]]:
        operators: dict[str, dict[Kind, dict[str, int]]] = {}
        for unit, kind, count in sorted(self._kinds()):
            operator, where = _operator(unit)
            operators.setdefault(operator, {}).setdefault(kind, {})[where] = count
        return {
            operator: [
                {"status": kind.status, "reason": kind.reason, **({"peer": kind.peer} if kind.peer else {}), "samples": samples}
                for kind, samples in kinds.items()
            ]
            for operator, kinds in operators.items()
        }

    def _kinds(self) -> Iterator[tuple[str, Kind, int]]:
        for unit, known in self.units.items():
            for kind, count in known.kinds.items():
                yield unit, kind, count


def row_of(unit: str) -> str:
    """The row of the table to which a unit belongs."""
    database, _, *rest = unit.split("/")
    return "/".join([database, *rest])


def target_of(row: str) -> str:
    """The target of a row."""
    return (row.split("/")[3:] or ["portable"])[0]


def _type(row: str) -> str:
    return "/".join(row.split("/")[:2])


def _operator(unit: str) -> tuple[str, str]:
    """Database and operator of a unit, and its type, sizes and target."""
    database, operator, *rest = unit.split("/")
    return f"{database}/{operator}", " ".join(rest)


def _unit(operator: str, where: str) -> str:
    return f"{operator}/{where.replace(' ', '/')}"


def _units_file(file: Path) -> Path:
    return file.with_name(f"{file.stem}_units.json")


def _order(row: str) -> tuple[str, int, int, str]:
    database, dtype, sizes, *_ = row.split("/")
    target = target_of(row)
    return "" if target == "portable" else target, DATABASES.index(database), DTYPES.index(dtype), sizes


def _with_total(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by status. ``total`` leaves out samples that eager itself refuses."""
    recorded = {status: counts.get(status, 0) for status in COUNTS}
    return recorded | {"total": sum(recorded[status] for status in STATUSES)}

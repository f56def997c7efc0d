"""Outcomes summed up: the results file and the README's table."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance_found import Found
from conformance_samples import DATABASES, DTYPES
from machine import provenance

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "scripts" / "bench" / "results" / "conformance.json"
README = ROOT / "README.md"
STATUSES = ("pass", "refused", "raises", "wrong", "crash")
TITLES = {"op_db": "ATen operators", "hop_db": "control flow", "custom_op_db": "custom operators"}

REASON = 300
"""Characters of a reason that are kept."""


def summary(found: Found) -> dict[str, Any]:
    """All there is to tell: totals, totals a row of the table, and of each operator that does not pass everywhere, why."""
    rows: dict[str, Counter[str]] = {}
    failures: dict[str, dict[tuple[str, str, str], Counter[str]]] = {}
    operators = set()
    for unit, outcomes in sorted(found.outcomes.items()):
        database, operator, dtype, sizes = unit.split("/")
        row = rows.setdefault(f"{database}/{dtype}/{sizes}", Counter())
        row.update(outcome["status"] for outcome in outcomes.values())
        row["left"] += max(found.totals[unit] - len(outcomes), 0)
        operators.add(f"{database}/{operator}")
        for outcome in outcomes.values():
            if outcome["status"] != "pass":
                kind = outcome["status"], outcome["reason"][:REASON], outcome["aot"][:REASON]
                failures.setdefault(f"{database}/{operator}", {}).setdefault(kind, Counter())[f"{dtype} {sizes}"] += 1
    return {
        **provenance(threads=1),
        "totals": counts(sum(rows.values(), Counter[str]())),
        "operators": len(operators),
        "fresh_process": found.fresh,
        "rows": {name: counts(row) for name, row in sorted(rows.items(), key=_order)},
        "failures": {
            operator: [
                {"status": status, "reason": reason, **({"aot_function": aot} if aot else {}), "samples": dict(where)}
                for (status, reason, aot), where in kinds.items()
            ]
            for operator, kinds in failures.items()
        },
    }


def with_rows_of(results: dict[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """The results with the rows of an ``earlier`` file that they lack, and of which day these are."""
    kept = {name: row for name, row in earlier["rows"].items() if name not in results["rows"]}
    runs = [*earlier.get("earlier", ()), {key: earlier[key] for key in ("date", "versions", "rows", "fresh_process")}]
    dated: list[dict[str, Any]] = []
    for run in runs:
        rows = [name for name in run["rows"] if name in kept and not any(name in other["rows"] for other in dated)]
        dated += [{**run, "rows": rows}] if rows else []
    failures = dict(results["failures"])
    for operator, kinds in earlier["failures"].items():
        database = operator.partition("/")[0]
        for kind in kinds:
            samples = {w: n for w, n in kind["samples"].items() if f"{database}/{w.replace(' ', '/')}" in kept}
            failures[operator] = failures.get(operator, []) + ([{**kind, "samples": samples}] if samples else [])
    rows = _with_all_left(dict(sorted({**results["rows"], **kept}.items(), key=_order)))
    totals: Counter[str] = Counter()
    for row in rows.values():
        totals.update(row)
    return {
        **results,
        "totals": dict(totals),
        "operators": max(results["operators"], earlier["operators"]),
        "rows": rows,
        "failures": {operator: kinds for operator, kinds in sorted(failures.items()) if kinds},
        "earlier": dated,
    }


def _with_all_left(rows: Mapping[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """A run that stops early has not seen how many samples there are: as many as with the other kind of sizes."""
    samples = {name: row["total"] + row["skipped"] + row["left"] for name, row in rows.items()}
    every = {name: max(count for other, count in samples.items() if _kind(other) == _kind(name)) for name in rows}
    return {name: row | {"left": every[name] - row["total"] - row["skipped"]} for name, row in rows.items()}


def _kind(row: str) -> str:
    return row.rpartition("/")[0]


def _order(row: tuple[str, Any]) -> tuple[int, int, str]:
    database, dtype, sizes = row[0].split("/")
    return DATABASES.index(database), DTYPES.index(dtype), sizes


def counts(counter: Counter[str]) -> dict[str, int]:
    """By status; ``total`` leaves out what eager itself refuses, and ``left`` is what was not run."""
    total = sum(counter[status] for status in STATUSES)
    return {
        **{status: counter[status] for status in STATUSES},
        "total": total,
        "skipped": counter["skipped"],
        "left": counter["left"],
    }


def markdown(results: Mapping[str, Any]) -> str:
    """A row a database, type and kind of sizes."""
    titles = ["pass", "refused at build", "raises at call", "wrong", "crash", "total", "not run"]
    lines = [
        "| database | type | sizes | " + " | ".join(titles) + " |",
        "| --- | --- | --- |" + " ---: |" * len(titles),
    ]
    for name, row in results["rows"].items():
        database, dtype, sizes = name.split("/")
        cells = [TITLES[database], f"`{dtype}`", sizes, *(f"{row[status]:,}" for status in (*STATUSES, "total", "left"))]
        lines.append(f"| {' | '.join(cells)} |")
    total = results["totals"]
    lines.append(f"| **all** | | | {' | '.join(f'**{total[status]:,}**' for status in (*STATUSES, 'total', 'left'))} |")
    return "\n".join([*lines, "", _note(results)])


def _note(results: Mapping[str, Any]) -> str:
    total = results["totals"]
    earlier = results.get("earlier", [])
    processes = [results["fresh_process"], *(run["fresh_process"] for run in earlier)]
    fresh = {"bundles": sum(one["bundles"] for one in processes), "wrong": dict(ChainMap(*(one["wrong"] for one in processes)))}
    refused = [failure for kinds in results["failures"].values() for failure in kinds if failure["status"] == "refused"]
    taken = sum(sum(failure["samples"].values()) for failure in refused if failure.get("aot_function") == "works")
    done = total["total"] + total["skipped"]
    untrusted = [name for name, line in fresh["wrong"].items() if line.startswith("TrustError")]
    differed = [name for name in fresh["wrong"] if name != "process" and name not in untrusted]
    process = f" (it {fresh['wrong']['process']})" if "process" in fresh["wrong"] else ""
    of_days = "".join(f"{_sizes(run['rows'])} rows are of {run['date'].split()[0]}. " for run in earlier)
    share = f"{done:,} of the {done + total['left']:,}" if total["left"] else f"All {done:,}"
    return (
        f"{share} samples of torch's own operator databases ({results['operators']} operators, in-place variants too) through "
        "build and load on `portable`, compared with eager: outputs, gradients, written arguments, aliasing, strides, random "
        "state. Of `bfloat16`, values differ where eager's are nearer to float64's than the bundle's. Samples that differ in "
        "values only share a build, with dynamic sizes also those that differ in sizes, where its bundle takes them. A fresh "
        f"process called {fresh['bundles']:,} of the bundles, {len(differed)} differed{process}, and {len(untrusted)} were "
        "refused there, for their operators' packages were not imported. Of the refused samples torch's own "
        f"`aot_function` takes {taken:,}; {total['skipped']:,} that eager itself refuses do not "
        f"count. {of_days}torch {results['versions']['torch']}; by `scripts/conformance`, reasons in "
        "scripts/bench/results/conformance.json."
    )


def _sizes(rows: Sequence[str]) -> str:
    """What rows have in common: ``Static``, ``Dynamic`` or nothing."""
    kinds = {row.rpartition("/")[2] for row in rows}
    return kinds.pop().capitalize() if len(kinds) == 1 else "Some"

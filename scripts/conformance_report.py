"""Outcomes summed up: the results file and the README's table."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from machine import provenance

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "scripts" / "bench" / "results" / "conformance.json"
README = ROOT / "README.md"
MARKS = ("<!-- conformance:begin -->", "<!-- conformance:end -->")
STATUSES = ("pass", "refused", "raises", "wrong", "crash")
TITLES = {"op_db": "ATen operators", "hop_db": "control flow", "custom_op_db": "custom operators"}

Outcomes = Mapping[str, Sequence[Mapping[str, str]]]


def summary(outcomes: Outcomes, fresh: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """All there is to tell: totals, totals a row of the table, and of each operator that does not pass everywhere, why.

    ``fresh`` is what a fresh process found.
    """
    rows: dict[str, Counter[str]] = {}
    operators: dict[str, Any] = {}
    for unit, found in sorted(outcomes.items()):
        database, operator, dtype, sizes = unit.split("/")
        counted = Counter(outcome["status"] for outcome in found)
        rows.setdefault(f"{database}/{dtype}/{sizes}", Counter()).update(counted)
        line = operators.setdefault(f"{database}/{operator}", {"counts": Counter(), "failures": []})
        line["counts"].update(counted)
        for status, reason, aot in sorted({key(outcome) for outcome in found if outcome["status"] != "pass"}):
            names = [outcome["sample"] for outcome in found if key(outcome) == (status, reason, aot)]
            failure = {"dtype": dtype, "sizes": sizes, "status": status, "reason": reason, "aot_function": aot}
            line["failures"].append({**failure, "samples": names[:5], "count": len(names)})
    totals = sum(rows.values(), Counter[str]())
    return {
        **provenance(threads=1),
        "samples_per_operator": options.samples or "all",
        "totals": counts(totals),
        "operators_total": len(operators),
        "fresh_process": fresh,
        "rows": {name: counts(row) for name, row in rows.items()},
        "operators": {
            name: {"counts": dict(line["counts"]), **({"failures": line["failures"]} if line["failures"] else {})}
            for name, line in operators.items()
        },
    }


def key(outcome: Mapping[str, str]) -> tuple[str, str, str]:
    return outcome["status"], outcome["reason"], outcome["aot"]


def counts(counter: Counter[str]) -> dict[str, int]:
    """By status; ``total`` leaves out what eager itself refuses."""
    return {
        **{status: counter[status] for status in STATUSES},
        "total": sum(counter[status] for status in STATUSES),
        "skipped": counter["skipped"],
    }


def markdown(results: Mapping[str, Any]) -> str:
    """A row a database, type and kind of sizes."""
    titles = ["pass", "refused at build", "raises at call", "wrong", "crash", "total"]
    lines = [
        "| database | type | sizes | " + " | ".join(titles) + " |",
        "| --- | --- | --- |" + " ---: |" * len(titles),
    ]
    for name, row in results["rows"].items():
        database, dtype, sizes = name.split("/")
        cells = [TITLES[database], f"`{dtype}`", sizes, *(f"{row[status]:,}" for status in (*STATUSES, "total"))]
        lines.append(f"| {' | '.join(cells)} |")
    total = results["totals"]
    lines.append(f"| **all** | | | {' | '.join(f'**{total[status]:,}**' for status in (*STATUSES, 'total'))} |")
    handled = sum(
        1
        for line in results["operators"].values()
        if any(failure["status"] == "refused" and failure["aot_function"] == "works" for failure in line.get("failures", ()))
    )
    count = results["samples_per_operator"]
    chosen = "All" if count == "all" else f"At most {count} of each operator's"
    note = (
        f"{chosen} samples of torch's own operator databases ({results['operators_total']} operators, in-place variants too) "
        "through build and load on `portable`, compared with eager: outputs, gradients, written arguments, aliasing, strides, "
        f"random state; {results['fresh_process']['bundles']} bundles again in a fresh process. Of {handled} operators a build "
        "refuses a sample that torch's own `aot_function` takes. "
        f"torch {results['versions']['torch']}; by `scripts/conformance`, reasons in scripts/bench/results/conformance.json."
    )
    return "\n".join([*lines, "", note])


def update_readme(results: Mapping[str, Any]) -> None:
    """Replace what is between the README's marks, if it has them."""
    text = README.read_text()
    begin, end = (text.find(mark) for mark in MARKS)
    if 0 <= begin < end:
        README.write_text(f"{text[:begin]}{MARKS[0]}\n{markdown(results)}\n{text[end:]}")

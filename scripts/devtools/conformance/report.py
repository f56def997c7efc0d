"""Formats results as the table of docs/operators.md."""

from __future__ import annotations

from collections import Counter

from ..machine import measured_on
from .results import STATUSES, Results, row_of, target_of

TITLES = {"op_db": "ATen operators", "hop_db": "control flow", "custom_op_db": "custom operators"}


def markdown(results: Results) -> str:
    """A row for each target, database, type and kind of sizes, and a total for each target."""
    titles = ["pass", "refused at build", "raises at call", "wrong", "crash", "total", "not run"]
    lines = [
        "| target | database | type | sizes | " + " | ".join(titles) + " |",
        "| --- | --- | --- | --- |" + " ---: |" * len(titles),
    ]
    rows = results.rows()
    for target, total in results.totals().items():
        for row, counts in rows.items():
            if target_of(row) == target:
                database, dtype, sizes, *_ = row.split("/")
                lines.append(_line([f"`{target}`", TITLES[database], f"`{dtype}`", sizes, *_cells(counts)]))
        lines.append(_line([f"**`{target}`**", "**all**", "", "", *(f"**{cell}**" for cell in _cells(total))]))
    return "\n".join([*lines, "", _note(results)])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(counts: Counter[str]) -> list[str]:
    total = sum(counts[status] for status in STATUSES)
    return [f"{count:,}" for count in (*(counts[status] for status in STATUSES), total, counts["left"])]


def _note(results: Results) -> str:
    totals = results.totals()
    total = totals.get("portable", Counter())
    counted = total.total() - total["skipped"]
    done = counted - total["left"]
    share = f"{done:,} of the {counted:,}" if total["left"] else f"All {done:,}"
    of_target = {target: {u: k for u, k in results.units.items() if target_of(row_of(u)) == target} for target in totals}
    kinds = [kind for known in of_target.get("portable", {}).values() for kind in known.kinds.items()]
    taken = sum(count for kind, count in kinds if kind.status == "refused" and kind.peer == "works")
    fresh = results.fresh
    untrusted = [name for name, line in fresh["wrong"].items() if line.startswith("TrustError")]
    differed = [name for name in fresh["wrong"] if name != "process" and name not in untrusted]
    process = f" (it {fresh['wrong']['process']})" if "process" in fresh["wrong"] else ""
    compiled = ""
    operators = {unit.split("/")[1] for unit in of_target.get("cpu", {})}
    if cpu := totals.get("cpu"):
        compiled = (
            f"On `cpu`, {cpu.total() - cpu['left'] - cpu['skipped']:,} samples of {len(operators)} operators were compiled, "
            "also many in one bundle (`--together`). Their values differ where the code's are more than twice as far from "
            "float64's as eager's. "
        )
    first, last = (day.split()[0] for day in (results.first or results.source["date"], results.source["date"]))
    days = f"from {first} to {last}" if first != last else f"on {last}"
    return (
        f"{share} samples of torch's own operator databases ({results.operators} operators, in-place variants too) "
        "went through build and load on `portable`. Outputs, gradients, written arguments, aliasing, strides and random state "
        f"are compared with eager. {total['skipped']:,} samples that eager itself refuses do not count. Of `bfloat16`, values "
        "differ where eager's are nearer to float64's than the bundle's. Samples that differ in values only share a build. With "
        "dynamic sizes, so do those that differ in sizes, where its bundle takes them. There, bundles of `float32` samples are "
        "also called with up to five other choices of sizes, 0 and 1 among them. A fresh process called "
        f"{fresh['bundles']:,} of the bundles, and {len(differed)} differed{process}. {len(untrusted)} were refused there, "
        "because their operators' packages were not imported. Of the refused samples torch's own `aot_function` takes "
        f"{taken:,}. {compiled}Found {days}, torch {results.source['versions']['torch']}{measured_on(results.source)}; by "
        "`scripts/conformance`, reasons in scripts/bench/results/conformance.json."
    )

"""`scripts/bench/check`: which rows of a fresh run count as changed."""

from __future__ import annotations

from typing import Any

import pytest

from devtools.bench.check import changes, failures
from devtools.bench.sections.networks import beside_the_better


def _row(ratio: float, low: float, high: float, **more: Any) -> dict[str, Any]:
    quartiles = {"cpu": [low, high]}
    return {"ratio_to_better": ratio, "ratio_to_compile": {"cpu": (low + high) / 2}, "ratio_quartiles": quartiles, **more}


@pytest.mark.parametrize(
    ("before", "after", "beyond"),
    [
        (_row(0.9, 0.89, 0.91), _row(1.0, 0.99, 1.01), True),
        (_row(0.9, 0.89, 0.91), _row(0.93, 0.92, 0.94), False),  # less than 5 %
        (_row(0.9, 0.7, 1.1), _row(1.0, 0.99, 1.01), False),  # a noisy row
        (_row(1.0, 0.99, 1.01), _row(0.8, 0.79, 0.81), True),  # faster
    ],
)
def test_noise_is_the_spread_of_either_run(before: dict[str, Any], after: dict[str, Any], beyond: bool) -> None:
    (change,) = changes({"cases": {"a": before, "gone": before}}, {"cases": {"a": after, "new": after}})
    assert change.is_beyond_noise == beyond
    assert (change.before, change.after) == (before["ratio_to_better"], after["ratio_to_better"])


def test_rows_that_a_partial_run_took_over_are_left_out() -> None:
    old, again = {"cases": {"a": _row(0.9, 0.8, 1.0), "b": _row(0.9, 0.89, 0.91)}}, _row(1.2, 1.19, 1.21)
    old["cases"]["b"]["measured"] = {"date": "2026-11-24 12:44 UTC", "load_average": 10.2}
    (change,) = changes(old, {"cases": {**old["cases"], "b": again}})
    assert str(change) == "b: 0.90 -> 1.20 (+33%, noise 5%, before: 2026-11-24, load 10.2)"


def test_a_row_that_fails_now_is_told() -> None:
    good, bad = _row(1.0, 0.9, 1.1), {"failed": "no code"}
    assert failures({"cases": {"a": good, "b": bad}}, {"cases": {"a": bad, "b": bad}}) == ["a"]


@pytest.mark.parametrize(
    ("eager", "expected"),
    [(0.5, {"better": "eager", "ratio_to_better": 1.6}), (2.0, {"better": "compile", "ratio_to_better": 0.8})],
)
def test_a_bundle_is_compared_with_the_faster_one(eager: float, expected: dict[str, Any]) -> None:
    assert beside_the_better({"eager": eager, "compile": 1.0, "cpu": 0.8}) == expected

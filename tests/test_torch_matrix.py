"""The table of tried releases is what scripts/test-torch-matrix found."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from aotpack_loader.devices.tried_releases import TRIED
from devtools.paths import RESULTS, ROOT
from devtools.torch_matrix.tried import ENOUGH, tried

BOTH = {str(number): {"result": "bit for bit"} for number in range(ENOUGH)}


def test_the_table_is_what_was_found() -> None:
    assert tried(json.loads((RESULTS / "torch-matrix.json").read_text())["loads"]) == TRIED


def test_the_guide_has_the_same_table() -> None:
    text = (ROOT / "docs" / "guide" / "targets.md").read_text().partition("| built on | runs on |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| (\S+) \| (.+) \|$", text, re.MULTILINE))
    assert {built: sorted(runs.split(", ")) for built, runs in rows.items() if built != "---"} == {
        built: sorted((built, *others)) for built, others in TRIED.items()
    }


def test_a_release_counts_where_every_case_ran_bit_for_bit() -> None:
    loads = {"2.13.0": {"2.13.0": BOTH, "2.14.1": BOTH, "2.15.0": BOTH}, "2.15.0": {"2.14.1": BOTH}}
    assert tried(loads) == {"2.13": ("2.14", "2.15"), "2.15": ("2.14",)}


@pytest.mark.parametrize("result", ["as eager", "differs", "crashed", "refused"])
def test_one_case_that_did_not_leaves_the_pair_out(result: str) -> None:
    rows: dict[str, Any] = {**BOTH, "another": {"result": result}}
    assert tried({"2.13.0": {"2.15.0": rows}}) == {}


def test_a_few_cases_are_not_enough() -> None:
    assert tried({"2.13.0": {"2.15.0": dict(list(BOTH.items())[1:])}}) == {}

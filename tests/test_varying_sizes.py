"""The table of what may vary (docs/guide/dynamic-shapes.md) says what builds do."""

from __future__ import annotations

import json

import pytest

from devtools import varying_sizes
from devtools.pages import replaced


@pytest.mark.parametrize("row", varying_sizes.ROWS, ids=lambda row: row.what)
def test_a_row_is_as_recorded(row: varying_sizes.Row) -> None:
    assert varying_sizes.outcome(row, "portable") == json.loads(varying_sizes.FILE.read_text())[row.what]["portable"]


def test_the_page_has_the_recorded_table() -> None:
    assert varying_sizes.PAGE.read_text() == replaced(varying_sizes.PAGE, "varying-sizes", varying_sizes.table())

"""Each front end by itself: cases of the table that all of them trace agree with eager."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aotpack.capture import FRONT_ENDS
from devtools.harness import run

from .table import CASES

NAMES = (
    "input mutation: data",
    "BatchNorm in a network",
    "outputs: alias of intermediate, base also output",
    "tied weights",
    "shapes: dynamic batch and sequence",
    "RNG dropout: two of them, eager's numbers under one seed",
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_front_end_agrees_with_eager(front_end: str, name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    (case,) = (case for case in CASES if case.name == name)
    run(replace(case, front_ends=(front_end,)), tmp_path / "case.aotpack")

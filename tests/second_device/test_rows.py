"""Rows of the conformance table on the second device: one in fifty a commit. ``scripts/conformance-device`` runs all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conformance.table import CASES

from devtools.harness import Case
from second_device import rows


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=pytest.mark.turns(50)) for case in CASES])
def test_eager_and_bundle_agree(case: Case, tmp_path: Path, device: torch.device) -> None:
    outcome = rows.run(case, tmp_path, device)
    assert outcome.status != "wrong", outcome.reason

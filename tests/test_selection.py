"""A share of the tests runs at each commit, and every test has its turn."""

from __future__ import annotations

import pytest
from support import selection


def test_every_row_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AOTPACK_NIGHTLY", raising=False)
    ran: set[str] = set()
    for commit in range(60):
        monkeypatch.setattr(selection, "_commit", lambda commit=commit: str(commit))
        now = {f"row {i}" for i in range(60) if selection.is_due(f"row {i}", 6)}
        assert len(now) < 30
        ran |= now
    assert len(ran) == 60


def test_nightly_runs_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_NIGHTLY", "1")
    assert all(selection.is_due(f"row {i}", 6) for i in range(60))

"""The pages about the fixes are what the register and the cases say."""

from __future__ import annotations

import runpy

from .harness import ROOT


def test_the_pages_are_up_to_date() -> None:
    pages = runpy.run_path(str(ROOT / "scripts" / "torch_fixes.py"))["pages"]()
    for file, text in pages.items():
        assert file.read_text() == text, f"{file.name}: run scripts/torch-fixes docs"
    folder = ROOT / "docs" / "torch-fixes"
    assert set(folder.glob("*.md")) == {file for file in pages if file.parent == folder}

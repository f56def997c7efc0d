"""The pages about the fixes are what the register and the cases say."""

from __future__ import annotations

from devtools.torch_fixes.reports import pages

from .harness import ROOT


def test_the_pages_are_up_to_date() -> None:
    made = pages()
    for file, text in made.items():
        assert file.read_text() == text, f"{file.name}: run scripts/torch-fixes docs"
    folder = ROOT / "docs" / "torch-fixes"
    assert set(folder.glob("*.md")) == {file for file in made if file.parent == folder}

"""The snippets of docs/xla.md, in order, with the model of the getting-started page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from support.markdown import ROOT, Block, blocks
from support.selection import nightly
from torch.export import Dim

import aotpack
import aotpack_loader
from aotpack.tools.cli import main

from .test_torch_xla import PYTHON
from .test_torch_xla import run as run_there


class Rows(torch.nn.Module):
    """A model with two dynamic dimensions, for the page's second command."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def snippets() -> tuple[Block, Block, Block]:
    """The training loop, the commands, and the load of compiled code."""
    loop, commands, compiled = (block for block in blocks(ROOT / "docs" / "xla.md") if block.left_out)
    return loop, commands, compiled


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page starts: model.py, and a portable bundle without the sizes that its command adds."""
    monkeypatch.chdir(tmp_path)
    (model,) = (block for block in blocks(ROOT / "docs" / "getting-started.md") if block.title == "model.py")
    (tmp_path / "model.py").write_text(model.text)
    sizes = {"x": {0: Dim("batch", min=2, max=64), 1: Dim("length", min=2, max=256)}}
    aotpack.build(Rows(), (torch.randn(4, 8),), out="other.aotpack", targets=("portable",), dynamic_shapes=sizes)
    return tmp_path


def run(words: list[str]) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, f"{words}\n{result.output}\n{result.exception!r}"


def test_the_snippets_of_the_page_run(workplace: Path) -> None:
    loop, commands, compiled = snippets()
    for line in commands.text.splitlines():
        run(shlex.split(line)[1:])
    if nightly() and PYTHON.exists():
        run_there(
            f"batches = [(torch.randn(n, 16), torch.zeros(n, dtype=torch.int64)) for n in (8, 32, 8)]\n{loop.text}\nprint(1)"
        )
    run(["build", "model.py", "--target", "xla:cpu", "-o", "model.aotpack", "--specialize", "batch=8"])
    names: dict[str, Any] = {"aotpack_loader": aotpack_loader}
    exec(compiled.text, names)
    assert names["model"].aotpack.backend == "xla:cpu"

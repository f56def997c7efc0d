"""What commands show on a terminal of 100 columns, and in a pipe."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from rich.table import Table

import aotpack
import aotpack_loader
from aotpack.tools.cli import main
from aotpack.tools.cli.console import _Console
from aotpack.tools.cli.run import _losses
from aotpack.tools.progress import Progress


def shown(value: Any, *, terminal: bool, width: int = 100) -> list[str]:
    stream = io.StringIO()
    _Console(file=stream, width=width, force_terminal=terminal, markup=False, color_system=None).print(value)
    return stream.getvalue().splitlines()


def test_tables_in_a_pipe_end_with_their_text() -> None:
    table = Table("name", "value", box=None)
    table.add_row("short", "x")
    table.add_row("long", "x" * 60)
    assert all(line == line.rstrip() for line in shown(table, terminal=False))


def test_losses_of_many_steps() -> None:
    assert _losses([1.0, 0.5]) == "1, 0.5"
    text = _losses([float(i) for i in range(300)])
    assert text == "0, 1, 2, … (294 more with --json), 297, 298, 299"


def test_a_long_stage_shows_its_time_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    progress = Progress(_Console(file=stream, width=150, force_terminal=True, color_system=None))
    with progress.stage("compile", "cpu:x86-64-v3"):
        label = progress._status.status  # type: ignore[union-attr]
        assert "0 s" in str(label.__rich__())  # type: ignore[union-attr]
        monkeypatch.setattr("aotpack.tools.progress._SLOW", -1.0)
        assert "the first build on a machine" in str(label.__rich__())  # type: ignore[union-attr]


@pytest.mark.parametrize("terminal", [True, False])
def test_builds_in_python_show_their_stages_on_a_terminal(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stderr", stream)
    options: dict[str, Any] = {"targets": ("portable",), "methods": ("infer",)}
    aotpack.build(torch.nn.ReLU(), (torch.ones(2),), out=tmp_path / "shown.aotpack", **options)
    assert ("✓ capture" in stream.getvalue()) is terminal
    stream.truncate(0)
    aotpack.build(torch.nn.ReLU(), (torch.ones(2),), out=tmp_path / "silent.aotpack", observer=aotpack.Silent(), **options)
    assert not stream.getvalue()


def test_the_format_of_a_graph_needs_a_graph(portable_digits_bundle: Path) -> None:
    result = CliRunner().invoke(main, ["inspect", str(portable_digits_bundle), "--format", "dot"])
    assert result.exit_code == 2
    assert "--graph" in result.output
    both = ["inspect", str(portable_digits_bundle), "--graph", "train.forward", "--html", "page.html"]
    assert CliRunner().invoke(main, both).exit_code == 2


def test_a_page_of_differences_comes_with_the_verdict(portable_digits_bundle: Path, tmp_path: Path) -> None:
    words = ["diff", str(portable_digits_bundle), str(portable_digits_bundle), "--html", str(tmp_path / "page.html")]
    assert "The bundles are equal" in CliRunner().invoke(main, words).output


def test_how_a_bundle_was_loaded_can_be_printed(portable_digits_bundle: Path) -> None:
    info = aotpack_loader.load(portable_digits_bundle, backend="portable").aotpack
    assert "portable (asked for; runs anywhere)" in repr(info)
    assert info.digest in repr(info)

"""What cannot be built is said before any work, and all of it at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from conftest import compiles_native_code

import aotpack
import aotpack_loader
from aotpack.tools.cli import main
from aotpack_loader.errors import AotpackError, BuildError, DirectoryError, RegistryError

NATIVE = pytest.mark.skipif(not compiles_native_code(), reason="this torch makes no native code")


def never(x: torch.Tensor) -> torch.Tensor:
    """A model that fails the test when it is traced."""
    pytest.fail("the build began")


def refusal(out: Path, **options: Any) -> AotpackError:
    with pytest.raises(AotpackError) as caught:
        aotpack.build(never, (torch.ones(3),), out=out, **options)
    return caught.value


def test_all_problems_of_a_build_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_STATE", "/proc/state")
    error = refusal(tmp_path / "no" / "m", targets=("gpu", "portable:fast"), methods=("trian",), autocast="fp8", rng="random")
    assert isinstance(error, BuildError)
    text = str(error)
    for part in ("'trian'", "'gpu'", "Known targets: cpu", "no variants", "'fp8'", "'random'", "no directory", "/proc/state"):
        assert part in text
    assert len(error.problems) == 7


def test_all_problems_of_a_compilation_at_once(portable_digits_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"'gpu'(.|\n)*no directory"):
        aotpack.compile_bundle(portable_digits_bundle, ["gpu"], out=tmp_path / "no" / "m")


def test_the_command_says_all_problems_before_it_runs_the_file(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text("raise SystemExit('the file ran')")
    words = ["build", str(model), "-o", str(tmp_path / "no" / "m"), "--target", "gpu", "--method", "trian"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert "the file ran" not in result.output
    assert all(part in result.output for part in ("'gpu'", "'trian'", "There is no directory"))
    assert "There is no file" in CliRunner().invoke(main, ["build", str(tmp_path / "mode.py"), *words[2:]]).output


@NATIVE
@pytest.mark.parametrize(
    ("script", "reason"),
    [(None, "g++ is not there"), ("echo 'cannot execute cc1plus' >&2; exit 1", "g++ fails: cannot execute cc1plus")],
)
def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str) -> None:
    if script is not None:
        compiler = tmp_path / "g++"
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        compiler.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    error = refusal(tmp_path / "m", targets=("cpu",))
    assert reason in error.summary
    assert "package g++" in error.hint
    assert "portable" in error.hint
    (tmp_path / "model.py").write_text("raise SystemExit('the file ran')")
    shown = CliRunner().invoke(main, ["build", str(tmp_path / "model.py"), "-o", str(tmp_path / "m"), "--target", "cpu"]).output
    assert "--target portable" in shown
    aotpack.build(torch.nn.Linear(2, 2), (torch.ones(1, 2),), out=tmp_path / "m", targets=("portable",))


@NATIVE
@pytest.mark.parametrize("variable", ["AOTPACK_STATE", "AOTPACK_CACHE"])
def test_directories_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "/proc/none")
    error = refusal(tmp_path / "m", targets=("cpu",))
    assert isinstance(error, DirectoryError)
    assert variable in error.hint


def test_an_output_directory_that_cannot_be_written_to() -> None:
    assert "Nothing can be written to /proc: No such file" in str(refusal(Path("/proc/m"), targets=("portable",)))


def test_an_output_that_is_no_regular_file(tmp_path: Path) -> None:
    """A device was replaced by the bundle."""
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/null"), tmp_path / "pipe"):
        mode = path.stat().st_mode
        assert "is no regular file" in str(refusal(path, targets=("portable",)))
        assert path.stat().st_mode == mode


def test_a_registry_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("urllib3", "aotpack_loader.registry"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "urllib3", None)
    with pytest.raises(RegistryError, match=r"pip install 'aotpack-loader\[registry\]'"):
        aotpack_loader.load("oci://localhost/model:latest")


def test_errors_of_a_store_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")

    class Offline(fsspec.AbstractFileSystem):
        protocol = "offline"

        def ukey(self, path: str) -> str:
            raise RuntimeError("secret")

    fsspec.register_implementation("offline", Offline, clobber=True)
    with pytest.raises(RegistryError, match=r"cannot be read or written: RuntimeError\.$"):
        aotpack_loader.load("offline://model")

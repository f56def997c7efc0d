"""Builds at the same time that write to one path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.archive import verified_digest, write_tiny

from aotpack.writer import destination
from aotpack_loader.errors import AotpackError


@pytest.mark.parametrize("layout", ["file", "directory"])
def test_four_processes(tmp_path: Path, layout: Any) -> None:
    """Four processes write to one path. A reader finds one of the bundles; of a directory it may lose parts, and is told."""
    out = tmp_path / "m"
    digests = {write_tiny(tmp_path / f"{number}", name=f"{number}") for number in range(4)}
    write_tiny(out, layout=layout, name="0")
    children = []
    for number in range(4):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                for _ in range(15):
                    write_tiny(out, layout=layout, name=f"{number}")
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    opened = 0
    while children:
        try:
            assert verified_digest(out) in digests
            opened += 1
        except AotpackError:
            assert layout == "directory"
        done, status = os.waitpid(-1, os.WNOHANG)
        if done:
            assert status == 0
            children.remove(done)
    assert opened
    assert verified_digest(out) in digests
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2", "3", "m"]


def test_a_directory_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build that replaced it removes what it was. A third build finds a bundle there, not a directory of other files."""
    out, removed = tmp_path / "m", tmp_path / "removed"
    write_tiny(out, layout="directory")
    listdir = os.listdir

    def replaced(handle: int) -> list[str]:
        monkeypatch.undo()
        os.rename(out, removed)
        write_tiny(out, layout="directory")
        (removed / "oci-layout").unlink()
        return listdir(handle)

    monkeypatch.setattr(destination.os, "listdir", replaced)
    digest = write_tiny(out, layout="directory", name="third")
    assert verified_digest(out) == digest
    assert not (removed / "oci-layout").exists()

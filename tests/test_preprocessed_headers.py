"""Which runs of the preprocessor a record saves."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from aotpack._torch.inductor.toolchain.preprocessed_headers import preprocess


class Header:
    """A header that includes another one, and counts how often the preprocessor runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = folder / "records"
        self.records.mkdir()
        self.included = folder / "with spaces, # and $" / "of torch.h"
        self.included.parent.mkdir()
        self.included.write_text("int first;\n")
        self.runs = 0

    def digest(self, *options: str, compiler: str = "g++ 12") -> str:
        """What Inductor reads, for a source under a new name."""
        folder = self.folder / f"call {len(list(self.folder.iterdir()))}"
        folder.mkdir()
        source, target = folder / "header.hpp", folder / "header.i"
        source.write_text("#include <of torch.h>\n")
        words = ["g++", str(source), *options, f"-I{self.included.parent}", "-E", "-P", "-o", str(target)]
        preprocess(shlex.join(words), str(folder), compiler=compiler, folder=self.records, run=self._run)
        return target.read_text()

    def _run(self, command: str, cwd: str) -> None:
        self.runs += 1
        subprocess.run(shlex.split(command), cwd=cwd, check=True)


@pytest.fixture
def header(tmp_path: Path) -> Header:
    return Header(tmp_path)


def test_the_preprocessor_runs_once(header: Header) -> None:
    assert header.digest() == header.digest()
    assert header.runs == 1


def test_a_changed_header_is_read_again(header: Header) -> None:
    before = header.digest()
    header.included.write_text("int other;\n")
    assert header.digest() != before
    assert header.runs == 2


def test_a_header_of_the_same_size_is_read_again_if_its_time_changed(header: Header) -> None:
    before = header.digest()
    status = header.included.stat()
    header.included.write_text("int frist;\n")
    os.utime(header.included, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert header.digest() != before


def test_a_header_that_is_gone_is_looked_for_again(header: Header) -> None:
    header.digest()
    header.included.unlink()
    with pytest.raises(subprocess.CalledProcessError):
        header.digest()


def test_records_are_of_options_and_compilers(header: Header, monkeypatch: pytest.MonkeyPatch) -> None:
    header.digest()
    header.digest("-DOPTION=1")
    header.digest(compiler="g++ 13")
    monkeypatch.setenv("CPATH", str(header.folder))
    header.digest()
    assert header.runs == 4


@pytest.mark.parametrize("damaged", [b"", b'{"digest": 1}', b"\x00\xff"])
def test_a_damaged_record_is_written_anew(header: Header, damaged: bytes) -> None:
    before = header.digest()
    (record,) = header.records.iterdir()
    record.write_bytes(damaged)
    assert header.digest() == header.digest() == before
    assert header.runs == 2

"""The cache of extracted code: extracted once, hashed before each use, and shared with nobody."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest
import torch
from support.archive import (
    PORTABLE,
    digest_of,
    tiny_graph,
    tiny_program,
)

from aotpack.writer.bundle import BlobStore, TargetEntry, write_bundle
from aotpack.writer.weights import write_weights
from aotpack_loader import BackendWarning, load
from aotpack_loader.archive import cache, temporaries
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import (
    AotpackError,
    CorruptBundleError,
    DirectoryError,
)
from aotpack_loader.format import media_types
from aotpack_loader.format.codec import encode
from aotpack_loader.format.schema import Descriptor

RAW = b"native code"


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AOTPACK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _extract(raw: bytes = RAW, produce: Callable[[], bytes] | None = None) -> Path:
    return cache.extract("sha256:" + "0" * 64, digest_of(raw), len(raw), produce or (lambda: raw), ".so")


def test_code_is_extracted_once(cache_dir: Path) -> None:
    path = _extract()
    assert path.resolve() == cache_dir / "code" / "sha256" / (digest_of(RAW)[7:] + ".so")
    assert str(path).startswith("/proc/self/fd/")
    assert path.read_bytes() == RAW
    assert path.stat().st_mode & 0o777 == 0o500
    assert cache_dir.stat().st_mode & 0o777 == 0o700

    def never() -> bytes:
        raise AssertionError

    assert _extract(produce=never) == path


@pytest.mark.parametrize("content", [b"", b"native cod", b"evil code!!", RAW + b"x"])
def test_wrong_code_in_the_cache_is_replaced(cache_dir: Path, content: bytes) -> None:
    path = _extract()
    path.unlink()
    path.write_bytes(content)
    assert _extract().read_bytes() == RAW
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert _extract().read_bytes() == RAW
    assert not path.is_symlink()


def test_code_is_hashed_before_each_use(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    real = hashlib.file_digest

    def file_digest(file: BinaryIO, kind: str) -> object:
        hashed.append(Path(f"/proc/self/fd/{file.fileno()}").read_bytes())
        return real(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", file_digest)
    path = _extract()
    assert [_extract(), _extract(), hashed] == [path, path, [RAW, RAW]]
    status = path.stat()
    path.chmod(0o700)
    path.write_bytes(b"evil code!!")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert _extract().read_bytes() == RAW
    assert hashed == [RAW, RAW, b"evil code!!"]
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("mode", [0o702, 0o720, 0o777])
def test_code_that_others_may_write_is_replaced(cache_dir: Path, mode: int) -> None:
    path = _extract()
    path.chmod(mode)
    assert _extract().stat().st_mode & 0o777 == 0o500


def test_code_that_is_not_what_was_promised(cache_dir: Path) -> None:
    with pytest.raises(CorruptBundleError, match="does not match its digest"):
        _extract(produce=lambda: b"native c0de")
    with pytest.raises(KeyboardInterrupt):
        _extract(produce=_interrupt)
    assert os.listdir(cache_dir / "code" / "sha256") == []


def _interrupt() -> bytes:
    raise KeyboardInterrupt


@pytest.mark.parametrize("part", ["..", "", "code", "code/sha256"])
def test_a_cache_that_others_may_write_to_is_refused(cache_dir: Path, part: str) -> None:
    _extract()
    (cache_dir / part).chmod(0o770)
    with pytest.raises(AotpackError, match="Other users may write"):
        _extract()


def test_a_cache_of_another_user_or_in_an_impossible_place(cache_dir: Path, monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    _extract()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(AotpackError, match="belongs to another user"):
        _extract()
    monkeypatch.setenv("AOTPACK_CACHE", str(tiny))
    with pytest.raises(AotpackError, match="cannot be used"):
        _extract()


def test_code_of_a_bundle(tmp_path: Path, cache_dir: Path, tiny: Path) -> None:
    with BlobStore(tmp_path / "m") as store:
        weights = write_weights([("scale", torch.arange(4.0))], store)
        graph = store.add_compressed(encode(tiny_graph()), media_types.GRAPH)
        code = store.add_compressed(RAW, media_types.CODE_AOTI)
        write_bundle(tmp_path / "m", store, tiny_program(graph, weights), [TargetEntry(PORTABLE, None, [graph, *weights, code])])
    with Bundle.open(tmp_path / "m") as bundle:
        assert bundle.code(code).read_bytes() == RAW
        assert bundle.code(code).suffix == ".so"
        notes = {media_types.ANNOTATION_RAW_SIZE: str(len(RAW))}
        for bad in (
            Descriptor(code.media_type, code.digest, code.size, notes),
            Descriptor(code.media_type, code.digest, code.size, notes | {media_types.ANNOTATION_RAW_DIGEST: "../x"}),
            Descriptor(code.media_type, code.digest, code.size, notes | {media_types.ANNOTATION_RAW_DIGEST: digest_of(b"")}),
            graph,
        ):
            with pytest.raises(CorruptBundleError):
                bundle.code(bad)


def test_concurrent_processes_extract_one_file(cache_dir: Path) -> None:
    program = (
        "import sys, hashlib\n"
        "from aotpack_loader.archive.cache import extract\n"
        "sys.stdin.read()\n"  # all start at once, when the pipe is closed
        "for number in range(100):\n"
        "    raw = b'%d' % number * 100_000\n"
        "    digest = 'sha256:' + hashlib.sha256(raw).hexdigest()\n"
        "    path = extract(digest, digest, len(raw), lambda: raw, '.so')\n"
        "    if path.read_bytes() != raw: sys.exit('half a file')\n"
    )
    reader, starter = os.pipe()
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdin=reader, stderr=subprocess.PIPE, pass_fds=[]) for _ in range(4)
    ]
    os.close(reader)
    time.sleep(0.5)  # for the interpreters to start: too short only makes the race milder
    os.close(starter)
    assert [process.communicate()[1].decode() for process in processes] == [""] * 4
    names = os.listdir(cache_dir / "code" / "sha256")
    assert len(names) == 100
    assert all(name.endswith(".so") for name in names)


def _no_space(path: Path, data: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fault", ["full", "full for packages", "a file", "of others", "records of others", "noexec"])
def test_without_a_directory_for_code_a_bundle_runs_portable(
    digits_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("AOTPACK_STATE" if fault == "records of others" else "AOTPACK_CACHE", str(folder))
    if fault == "full":
        monkeypatch.setattr(cache, "write_whole", _no_space)
    elif fault == "full for packages":
        monkeypatch.setattr(temporaries, "temporary_directory", lambda parent: _no_space(parent, b""))
    elif fault == "a file":
        folder.write_bytes(b"")
    elif fault == "noexec":
        monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.warns(BackendWarning, match=r"portable graphs.*(cannot be|cannot run|may write).*AOTPACK"):
        model = load(digits_bundle)
    assert model.aotpack.backend == "portable"
    assert model(torch.rand(3, 1, 8, 8), torch.tensor([1, 2, 3]))["loss"].requires_grad
    with pytest.raises(DirectoryError, match=r"AOTPACK_(CACHE|STATE)"):
        load(digits_bundle, backend="cpu")

"""Killed processes, full disks, read-only caches, changed files, builds side by side: whole bundles or none, and no rubbish."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.archive import verified_digest, write_tiny
from support.full_disk import small_folder

import aotpack_loader
from aotpack.signing.sign import sign
from aotpack.writer.bundle import BlobStore
from aotpack.writer.cache import CompileCache
from aotpack_loader.archive import cache, exchange, temporaries
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.temporaries import PREFIX, replace_directory, temporary_directory, temporary_file
from aotpack_loader.errors import AotpackError, BuildError, BundleError, LockError
from aotpack_loader.registry.files import copy_file, put_file
from aotpack_loader.registry.lock import write_lock
from aotpack_loader.registry.store import BlobCache
from aotpack_loader.signing.keys import PrivateKey

LARGE = 3 << 20


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("AOTPACK_CACHE", str(folder))
    return folder


def write_large(out: Path, **options: Any) -> str:
    return write_tiny(out, tensors=[("large", torch.zeros(LARGE, dtype=torch.uint8))], **options)


# ---------------------------------------------------------------- killed processes


def write_file(folder: Path) -> Path:
    write_tiny(folder / "m.aotpack")
    return folder


def write_directory(folder: Path) -> Path:
    write_tiny(folder / "m", layout="directory")
    return folder


def attach(folder: Path) -> Path:
    write_tiny(folder / "m.aotpack")
    (folder / f"{PREFIX}late").touch()
    sign(folder / "m.aotpack", PrivateKey.generate("ed25519"))
    return folder


def attach_to_directory(folder: Path) -> Path:
    write_tiny(folder / "m", layout="directory")
    (folder / "m" / f"{PREFIX}late").touch()
    sign(folder / "m", PrivateKey.generate("ed25519"))
    return folder / "m"


def lock(folder: Path) -> Path:
    write_lock(folder / "aotpack.lock", "oci://host/a:b", f"sha256:{'0' * 64}")
    return folder


def put(folder: Path) -> Path:
    write_tiny(folder / "m.aotpack")
    (folder / f"{PREFIX}late").touch()
    put_file(folder / "m.aotpack", f"file://{folder}/other.aotpack")
    return folder


def copied(folder: Path) -> Path:
    write_tiny(folder / "m.aotpack")
    (folder / f"{PREFIX}late").touch()
    copy_file(f"file://{folder}/m.aotpack", folder / "other.aotpack")
    return folder


def code(folder: Path) -> Path:
    cache.write_whole(folder / "code.so", b"code")
    return folder


def compiled(folder: Path) -> Path:
    """The folder of one entry of the compile cache, which is there before."""
    files, options = {"code": b"x", "facts": b"{}"}, {"a": "b"}
    CompileCache().keep(b"source", options, files)
    (entry,) = (path.parent for path in (folder / "compiled").rglob("complete"))
    (entry / f"{PREFIX}late").touch()
    CompileCache().keep(b"source", options, files)
    return entry


def registry_cache(folder: Path) -> Path:
    found = BlobCache(folder).partial
    (found / f"{PREFIX}late").mkdir()
    return BlobCache(folder).partial


WRITERS = [
    write_file, write_directory, attach, attach_to_directory, lock, put, copied, code, compiled, registry_cache,
]  # fmt: skip


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_what_a_killed_process_left_is_removed_by_the_next(own_cache: Path, write: Callable[[Path], Path]) -> None:
    stale, used = own_cache / f"{PREFIX}stale", own_cache / f"{PREFIX}used"
    stale.mkdir()
    (stale / "part").write_text("x")
    with open(used, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # as a process that is at work
        folder = write(own_cache)
    left = {path.name for path in folder.iterdir() if path.name.startswith(PREFIX)}
    assert left == ({used.name} if folder == own_cache else set())
    assert used.exists()


@pytest.mark.parametrize("layout", ["file", "directory"])
def test_a_killed_write_leaves_the_old_bundle_and_the_next_cleans_up(tmp_path: Path, layout: Any) -> None:
    out = tmp_path / "m"
    old = write_tiny(out, layout=layout, name="old")
    ready, waits = os.pipe()
    pid = os.fork()
    if not pid:

        def stop(self: BlobStore, digest: str, file: Any) -> None:
            file.write(b"half")
            file.flush()
            os.write(waits, b"x")
            time.sleep(60)

        try:
            BlobStore.copy = stop  # type: ignore[method-assign]
            write_tiny(out, layout=layout, name="new")
        finally:
            os._exit(1)
    try:
        os.read(ready, 1)
        write_tiny(tmp_path / "beside")  # what a process at work has stays
        left = [*tmp_path.glob(f"{PREFIX}*")]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert left
    assert all(path.exists() for path in left)
    assert verified_digest(out) == old
    new = write_tiny(out, layout=layout, name="new")
    assert sorted(os.listdir(tmp_path)) == ["beside", "m"]
    assert verified_digest(out) == new


def test_what_belongs_to_another_user_stays(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can make a file of another user")
    stale = tmp_path / f"{PREFIX}stale"
    stale.touch()
    os.chown(stale, 65534, 65534)
    write_tiny(tmp_path / "m")
    assert stale.exists()


@pytest.mark.parametrize("make", [temporary_file, temporary_directory])
def test_what_was_taken_for_stale_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Any]
) -> None:
    taken: list[Path] = []

    def flock(handle: int, operation: int) -> None:
        if not taken:
            taken.extend(tmp_path.iterdir())
            for path in taken:
                path.rmdir() if path.is_dir() else path.unlink()

    monkeypatch.setattr(temporaries.fcntl, "flock", flock)
    with make(tmp_path):
        assert taken
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("at_once", [True, False])
def test_a_directory_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    if not at_once:
        monkeypatch.setattr(exchange, "exchange", lambda first, second: False)
    new, old = tmp_path / "new", tmp_path / "old"
    for path in (new, old):
        path.mkdir()
        (path / path.name).touch()
    replace_directory(new, old)
    assert (os.listdir(old), os.listdir(new)) == (["new"], ["old"])
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]


# ---------------------------------------------------------------- full disks


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder in which 2 MiB have space."""
    with small_folder(tmp_path / "small", 2 << 20) as folder:
        yield folder


FULL = "No space left on device|File too large"


@pytest.mark.parametrize("layout", ["file", "directory"])
def test_a_full_disk_leaves_the_old_bundle(small: Path, layout: Any) -> None:
    old = write_tiny(small / "m", layout=layout)
    with pytest.raises(BuildError, match=rf"cannot be written( to .*)?: ({FULL})"):
        write_large(small / "m", layout=layout)
    assert os.listdir(small) == ["m"]
    assert verified_digest(small / "m") == old


def test_a_disk_that_is_full_when_a_bundle_is_signed(small: Path) -> None:
    write_tiny(small / "m")
    before = (small / "m").read_bytes()
    size = (2 << 20) - len(before) - 4096
    if os.statvfs(small).f_blocks * os.statvfs(small).f_frsize > LARGE:
        pytest.skip("no file system of a fixed size can be mounted")
    (small / "filler").write_bytes(bytes(size))
    with pytest.raises(BuildError, match="No space left"):
        sign(small / "m", PrivateKey.generate("ed25519"))
    assert sorted(os.listdir(small)) == ["filler", "m"]
    assert (small / "m").read_bytes() == before


def test_a_lock_file_on_a_full_disk(small: Path) -> None:
    if os.statvfs(small).f_blocks * os.statvfs(small).f_frsize > LARGE:
        pytest.skip("no file system of a fixed size can be mounted")
    write_lock(small / "aotpack.lock", "oci://host/a:b", f"sha256:{'0' * 64}")
    before = (small / "aotpack.lock").read_bytes()
    with contextlib.suppress(OSError):
        (small / "filler").write_bytes(bytes(LARGE))
    with pytest.raises(LockError, match="No space left"):
        write_lock(small / "aotpack.lock", "oci://host/c:d", f"sha256:{'1' * 64}")
    assert (small / "aotpack.lock").read_bytes() == before
    assert sorted(os.listdir(small)) == ["aotpack.lock", "filler"]


# ---------------------------------------------------------------- read-only folders


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user, because root may write everywhere."""
    if os.geteuid():
        pytest.skip("needs root, to become another user")
    write_tiny(tmp_path / "m.aotpack")
    (tmp_path / "m.aotpack").chmod(0o644)  # scripts/test has a narrow umask
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o500)
    os.chown(folder, 65534, 65534)
    for parent in [tmp_path, *tmp_path.parents][:4]:
        parent.chmod(parent.stat().st_mode | 0o055)
    monkeypatch.setenv("AOTPACK_CACHE", str(folder))
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgid(65534)
            os.setuid(65534)
            os.write(writes, "\n".join(what_another_user_sees(tmp_path / "m.aotpack")).encode())
        finally:
            os._exit(0)
    os.close(writes)
    os.waitpid(pid, 0)
    with open(reads) as answer:
        first, *errors = answer.read().splitlines()
    assert first == "[0.0, 1.0, 2.0, 3.0]"
    assert len(errors) == 2
    assert all(line.startswith("DirectoryError") and "cannot be used: Permission denied" in line for line in errors)


def what_another_user_sees(path: Path) -> Iterator[str]:
    model = aotpack_loader.load(path).eval()
    with torch.no_grad():
        yield str(model(torch.ones(4)).tolist())
    acts: list[Callable[[], object]] = [BlobCache, lambda: cache.extract("sha256:x", f"sha256:{'0' * 64}", 1, lambda: b"", ".so")]
    for act in acts:
        try:
            act()
        except AotpackError as error:
            yield f"{type(error).__name__} {error.summary}"


# ---------------------------------------------------------------- files that change


def test_a_bundle_that_is_replaced_does_not_change_a_loaded_model(tmp_path: Path) -> None:
    out = tmp_path / "m.aotpack"
    write_large(out)
    model = aotpack_loader.load(out).eval()
    write_tiny(out, name="other")
    sign(out, PrivateKey.generate("ed25519"))
    out.unlink()
    with torch.no_grad():
        assert torch.equal(model(torch.ones(4)), torch.arange(4.0))


@pytest.mark.parametrize("layout", ["file", "directory"])
def test_a_file_that_changes_while_it_is_open_is_noticed(tmp_path: Path, layout: Any) -> None:
    """Documents are read once and checked. What was checked is a copy, so a later change of the file cannot reach it."""
    out = tmp_path / "m"
    write_tiny(out, layout=layout)
    with Bundle.open(out) as bundle:
        forward = bundle.program.methods["infer"].forward
        before = bytes(bundle.read(forward))
        for path in [out] if layout == "file" else [*(out / "blobs" / "sha256").iterdir()]:
            with open(path, "r+b") as file:
                data = file.read()
                file.seek(0)
                file.write(bytes(byte ^ 1 for byte in data))
        assert before != b""
        with pytest.raises(BundleError, match=r"damaged|does not match|digest"):
            bundle.read(forward)
        with pytest.raises(BundleError):
            bundle.graph(forward)
        for path in [out] if layout == "file" else [*(out / "blobs" / "sha256").iterdir()]:
            os.truncate(path, 0)
        with pytest.raises(BundleError):
            bundle.map(bundle.program.weights[0])
        with pytest.raises(BundleError):
            bundle.verify()

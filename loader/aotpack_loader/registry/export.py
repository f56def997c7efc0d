"""Writes a bundle of the cache to a file or directory of the user's: complete or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from ..archive.digest import hex_part
from ..archive.tar import BLOCK, MAX_SIZE
from ..archive.tar_header import header
from ..errors import RegistryError
from ..format.schema import Descriptor

_MARKER = b'{"imageLayoutVersion":"1.0.0"}'
_PIECE = 1 << 30
_PREFIX = ".aotpack-pull-"


def export(source: Path, descriptors: Iterable[Descriptor], out: str | os.PathLike[str]) -> Path:
    """Copy the blobs ``descriptors`` of the unpacked bundle ``source`` to ``out`` and return its path.

    A path that ends in ``/``, or is a directory, asks for an unpacked bundle.

    Raises:
        RegistryError: it cannot be written, or holds something else.
    """
    path = Path(os.path.abspath(out))
    as_directory = os.fspath(out).endswith("/") or path.is_dir()
    temporary = path.parent / f"{_PREFIX}{os.urandom(8).hex()}"
    wanted = {descriptor.digest: descriptor for descriptor in descriptors}
    lock = -1
    try:
        _remove_stale(path.parent)
        temporary.mkdir(mode=0o755) if as_directory else temporary.touch(exist_ok=False)
        lock = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if as_directory:
            _refuse_foreign(path)
            _write_directory(temporary, source, sorted(wanted))
            _swap(temporary, path)
        else:
            _write_file(temporary, source, [wanted[digest] for digest in sorted(wanted)])
            os.replace(temporary, path)
    except OSError as error:
        if isinstance(error, RegistryError):
            raise
        raise RegistryError(f"The bundle {path} cannot be written: {error.strerror}.") from error
    finally:
        _remove(temporary)
        if lock >= 0:
            os.close(lock)
    return path


def _remove_stale(folder: Path) -> None:
    """Remove what killed processes left. A process that is at work holds a lock on its own."""
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
            finally:
                os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _write_directory(path: Path, source: Path, digests: list[str]) -> None:
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for digest in digests:
        with open(blobs / hex_part(digest), "xb") as file:
            _append(file, source, digest)
    (path / "index.json").write_bytes((source / "index.json").read_bytes())
    (path / "oci-layout").write_bytes(_MARKER)


def _write_file(path: Path, source: Path, descriptors: list[Descriptor]) -> None:
    with open(path, "wb") as file:
        for descriptor in descriptors:
            if descriptor.size > MAX_SIZE:
                hint = "Pull into a directory instead: give an output path that ends in '/'."
                raise RegistryError(f"The blob {descriptor.digest} is too large for a bundle file.", hint=hint)
            file.write(header("blobs/sha256/" + hex_part(descriptor.digest), descriptor.size))
            _append(file, source, descriptor.digest)
            file.write(bytes(-descriptor.size % BLOCK))
        for name, data in (("index.json", (source / "index.json").read_bytes()), ("oci-layout", _MARKER)):
            file.write(header(name, len(data)) + data + bytes(-len(data) % BLOCK))
        file.write(bytes(2 * BLOCK))
        file.flush()
        os.fsync(file.fileno())


def _append(file: BinaryIO, source: Path, digest: str) -> None:
    """Append a blob, inside the kernel where it can do so."""
    file.flush()
    with open(source / "blobs" / "sha256" / hex_part(digest), "rb", buffering=0) as blob:
        left = os.fstat(blob.fileno()).st_size
        while left:
            copied = os.sendfile(file.fileno(), blob.fileno(), None, min(left, _PIECE))
            if not copied:
                raise RegistryError(f"The blob {digest} in the cache has become shorter.", hint="Run `aotpack cache verify`.")
            left -= copied
    file.seek(0, os.SEEK_END)


def _refuse_foreign(path: Path) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise RegistryError(f"{path} is not a directory.")
    if path.is_dir():
        names = {entry.name for entry in path.iterdir()}
        if names and names != {"blobs", "index.json", "oci-layout"}:
            raise RegistryError(f"The directory {path} is not empty and holds no bundle.", hint="Choose another directory.")


def _swap(new: Path, path: Path) -> None:
    """Replace the directory ``path`` by ``new``."""
    old = path.parent / f".aotpack-old-{os.urandom(8).hex()}"
    if path.exists():
        os.rename(path, old)
    try:
        os.rename(new, path)
    except BaseException:
        if old.exists():
            os.rename(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)

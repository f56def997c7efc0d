"""The cache of extracted code. Native code needs a real file, and the cache names it by its digest.

It decides nothing about trust, and removes nothing. A file is hashed before each time it is opened
as code. Its directory is reached by a handle, so no other user can put another file in its place in
between (:mod:`.private`).
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from ..errors import CorruptBundleError, DirectoryError, Problem
from . import digest as digests
from .private import by_handle, private_directory, require_writable, user_directory

__all__ = ["cache_root", "extract", "is_private", "private_directory", "read_private", "user_directory", "write_whole"]

_MODE = 0o500


def cache_root() -> Path:
    """Return ``$AOTPACK_CACHE``, else ``$XDG_CACHE_HOME/aotpack``, else ``~/.cache/aotpack``; creates it if missing.

    Raises:
        DirectoryError: it cannot be created, belongs to another user, or others may write to it.
    """
    return private_directory(user_directory("AOTPACK_CACHE", "XDG_CACHE_HOME", ".cache"), "AOTPACK_CACHE")


def check_cache() -> None:
    """Check that the cache can be used, before a build begins.

    Raises:
        DirectoryError: as :func:`cache_root`, or it cannot be written to.
    """
    require_writable(cache_root(), "AOTPACK_CACHE")


def extract(digest: str, raw_digest: str, raw_size: int, produce: Callable[[], bytes], suffix: str) -> Path:
    """Return a file that holds the decompressed bytes of blob ``digest``. ``produce`` is called if there is none yet.

    The file is always complete and checked. Concurrent processes may extract the same one. Its name
    goes through a handle of its directory (:func:`~.private.by_handle`).

    Args:
        digest: the blob as stored, for messages.
        raw_digest: the required digest of the file.
        raw_size: the required size of the file, in bytes.
        produce: returns the decompressed bytes.
        suffix: of the file's name, such as ``.so``.

    Raises:
        CorruptBundleError: ``produce`` returned other bytes.
        DirectoryError: the cache cannot be written to, or runs no code.
    """
    root = cache_root()
    path = code_folder(root) / (digests.hex_part(raw_digest) + suffix)
    if _holds(path, raw_digest, raw_size):
        return path
    data = produce()
    if len(data) != raw_size or digests.sha256(data) != raw_digest:
        raise CorruptBundleError(
            "Compiled code does not match its digest.",
            [Problem(digest, f"it decompresses to {len(data)} bytes that are not {raw_digest}")],
        )
    try:
        write_whole(path, data)
    except OSError as error:
        raise DirectoryError(
            f"Compiled code cannot be written to {root / 'code' / 'sha256'}: {error.strerror}.",
            hint="Set AOTPACK_CACHE to a directory with enough space.",
        ) from error
    return path


def code_folder(root: Path) -> Path:
    """Return the directory of extracted code in the cache ``root``, by its handle.

    Raises:
        DirectoryError: it cannot be used, or its file system runs no code.
    """
    folder = by_handle(root / "code" / "sha256", "AOTPACK_CACHE")
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise DirectoryError(
            f"Compiled code cannot run from {root}: its file system is mounted with noexec.",
            hint="Set AOTPACK_CACHE to a directory of another file system.",
        )
    return folder


def extracted(folder: Path, raw_digest: str, raw_size: int, suffix: str) -> Path | None:
    """Return the file that :func:`extract` made in ``folder``, checked again. None: it is not there."""
    path = folder / (digests.hex_part(raw_digest) + suffix)
    return path if _holds(path, raw_digest, raw_size) else None


def read_private(path: Path) -> bytes | None:
    """Return the bytes of a file that only this user can write to. None: it is missing, or somebody else's."""
    handle = _open_private(path)
    if handle is None:
        return None
    with open(handle, "rb", buffering=0) as file:
        return file.read()


def is_private(path: Path) -> bool:
    """Whether ``path`` is a regular file that only this user can write to."""
    handle = _open_private(path)
    if handle is None:
        return False
    os.close(handle)
    return True


def _holds(path: Path, raw_digest: str, raw_size: int) -> bool:
    """Whether ``path`` is already the required file. Anything else at that path is replaced."""
    handle = _open_private(path)
    if handle is None:
        return False
    with open(handle, "rb", buffering=0) as file:
        if os.fstat(handle).st_size != raw_size:
            return False
        return digests.PREFIX + hashlib.file_digest(file, "sha256").hexdigest() == raw_digest


def _open_private(path: Path) -> int | None:
    """Open a regular file that only this user can write to. None: there is no such file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return handle
    os.close(handle)
    return None


def write_whole(path: Path, data: bytes) -> None:
    """Write a temporary file, then rename it, so that no reader sees an incomplete file.

    No fsync is needed, because the file can be written again after a crash.
    """
    from .temporaries import temporary_file  # not needed for code that is already in the cache

    with temporary_file(path.parent, _MODE) as temporary:
        temporary.file.write(data)
        temporary.move_to(path)

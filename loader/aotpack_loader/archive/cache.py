"""The cache of extracted code. Native code needs a real file, and the cache names it by its digest.

This module also makes directories that only this user can write to. It decides nothing about trust,
and removes nothing.

A file is hashed at every start until a note next to it records that it was correct, with its inode,
size and times. The time of a start then does not depend on the amount of code. Whoever can forge a
note could also replace a file right after it was hashed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import CorruptBundleError, DirectoryError, Problem
from . import digest as digests

_MODE = 0o500
_SETTLED = 2_000_000_000
"""Nanoseconds after which a further change of a file shows in its times, however coarse the clock of the file system is."""


def cache_root() -> Path:
    """Return ``$AOTPACK_CACHE``, else ``$XDG_CACHE_HOME/aotpack``, else ``~/.cache/aotpack``; creates it if missing.

    Raises:
        DirectoryError: it cannot be created, belongs to another user, or others may write to it.
    """
    return private_directory(user_directory("AOTPACK_CACHE", "XDG_CACHE_HOME", ".cache"), "AOTPACK_CACHE")


def user_directory(variable: str, xdg_variable: str, fallback: str) -> Path:
    """Return the directory that ``variable`` names, else ``aotpack`` below the XDG directory or ``~/fallback``."""
    if chosen := os.environ.get(variable):
        return Path(chosen).absolute()
    base = os.environ.get(xdg_variable, "")
    if os.path.isabs(base):  # the XDG specification says to ignore a relative one
        return Path(base, "aotpack")
    try:
        return Path.home() / fallback / "aotpack"
    except RuntimeError as error:
        raise DirectoryError("This user has no home directory.", hint=f"Set {variable} to a directory.") from error


def private_directory(path: Path, variable: str) -> Path:
    """Create ``path`` for this user alone (mode 0700) and return it.

    ``variable`` is the environment variable to name in errors.

    Raises:
        DirectoryError: it cannot be created, belongs to another user, or others may write to it.
    """
    hint = f"Set {variable} to a directory that only you can write to."
    try:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        raise DirectoryError(f"The directory {path} cannot be used: {error.strerror}.", hint=hint) from error
    if status.st_uid != os.geteuid():
        raise DirectoryError(f"The directory {path} belongs to another user (uid {status.st_uid}).", hint=hint)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DirectoryError(f"Other users may write to the directory {path}.", hint=f"Run `chmod 700 {path}`. {hint}")
    return path


def extract(digest: str, raw_digest: str, raw_size: int, produce: Callable[[], bytes], suffix: str) -> Path:
    """Return a file that holds the decompressed bytes of blob ``digest``. ``produce`` is called if there is none yet.

    The file is always complete and checked. Concurrent processes may extract the same one.

    Args:
        digest: the blob as stored, for messages.
        raw_digest: the required digest of the file.
        raw_size: the required size of the file, in bytes.
        produce: returns the decompressed bytes.
        suffix: of the file's name, such as ``.so``.

    Raises:
        CorruptBundleError: ``produce`` returned other bytes.
        DirectoryError: the cache cannot be written to.
    """
    folder = cache_root()
    for part in ("code", "sha256"):
        folder = private_directory(folder / part, "AOTPACK_CACHE")
    path = folder / (digests.hex_part(raw_digest) + suffix)
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
            f"Compiled code cannot be written to {path}: {error.strerror}.",
            hint="Set AOTPACK_CACHE to a directory with enough space.",
        ) from error
    return path


def _holds(path: Path, raw_digest: str, raw_size: int) -> bool:
    """Whether ``path`` is already the required file. Anything else at that path is replaced."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with open(handle, "rb", buffering=0) as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size != raw_size:
            return False
        note, seen = path.with_suffix(".checked"), _identity(status)
        if _read(note) == seen:
            return True
        if digests.PREFIX + hashlib.file_digest(file, "sha256").hexdigest() != raw_digest:
            return False
        if time.time_ns() - status.st_ctime_ns > _SETTLED:
            with contextlib.suppress(OSError):  # on a full disk the file is still correct, and hashed again next time
                write_whole(note, seen)
        return True


def _identity(status: os.stat_result) -> bytes:
    """The properties of a file that change whenever its content does."""
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}".encode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def write_whole(path: Path, data: bytes) -> None:
    """Write a temporary file, then rename it, so that no reader sees an incomplete file.

    No fsync is needed, because the file can be written again after a crash.
    """
    temporary = path.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE), "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

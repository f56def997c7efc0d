"""Temporary files and directories that the next run removes if this process is killed.

The name of each begins with ``PREFIX``, and the process that uses it holds a lock on it. The lock
ends with the process. So a name without a lock is what a killed process left, and whoever makes the
next temporary in that directory removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

PREFIX: Final = ".aotpack-tmp-"
_EXISTS: Final = (errno.EEXIST, errno.ENOTEMPTY)
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class TemporaryFile:
    """A new file, open for writing."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file

    def move_to(self, target: Path, *, durable: bool = False) -> None:
        """Give the complete file its final name, which it takes at once. ``durable``: also after a power cut."""
        self.file.flush()
        if durable:
            os.fsync(self.file.fileno())
        os.replace(self.path, target)


@contextmanager
def temporary_file(folder: Path, mode: int = 0o666) -> Iterator[TemporaryFile]:
    """Make a file in ``folder``, and remove it at the end unless it was moved.

    Raises:
        OSError: it cannot be written.
    """
    remove_stale(folder)
    path, handle = _make(folder, lambda path: os.open(path, _CREATE, mode))
    try:
        with open(handle, "wb") as file:
            yield TemporaryFile(path, file)
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def temporary_directory(folder: Path, mode: int = 0o700) -> Iterator[Path]:
    """Make a directory in ``folder``, and remove what has its name at the end.

    Raises:
        OSError: it cannot be made.
    """

    def make(path: Path) -> int:
        os.mkdir(path, mode)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    remove_stale(folder)
    path, handle = _make(folder, make)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def remove_stale(folder: Path) -> None:
    """Remove what killed processes of this user left in ``folder``.

    What cannot be removed stays: it is in use, or this is a file system without locks. A run never
    fails for it.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError):
                    _remove_unlocked(Path(entry.path))


def replace_directory(new: Path, path: Path) -> None:
    """Give the directory ``new`` the name ``path``. A directory that had it gets the name ``new``.

    Both happen at once where the file system can exchange two names.

    Raises:
        OSError: it cannot be renamed.
    """
    try:
        os.rename(new, path)  # replaces nothing, or an empty directory
        return
    except OSError as error:
        if error.errno not in _EXISTS:
            raise
    from .exchange import exchange  # rarely needed

    if exchange(new, path):
        return
    # Between two renames a kill may leave the only copy under this name, so it is never removed as stale.
    old = path.with_name(f".aotpack-old-{os.urandom(8).hex()}")
    os.rename(path, old)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(old, path)
        raise
    os.rename(old, new)


_ATTEMPTS = 20


def _make(folder: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """Make something with ``make``, which returns its handle, and lock it.

    Another process may take it for stale and remove it before it is locked. Then the next name is tried.
    """
    failed = OSError(errno.EAGAIN, "Other processes remove new files before they are used", str(folder))
    for _ in range(_ATTEMPTS):
        path = folder / f"{PREFIX}{os.urandom(8).hex()}"
        try:
            handle = make(path)
        except FileNotFoundError as error:  # also where the directory takes no files at all, such as /proc
            failed = error
            continue
        with contextlib.suppress(OSError):  # a file system without locks: then nothing is removed as stale either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if is_still_at(handle, path):
            return path, handle
        os.close(handle)
    raise failed


def _remove_unlocked(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.fstat(handle).st_uid != os.geteuid():
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not is_still_at(handle, path):
            return
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def is_still_at(handle: int, path: Path) -> bool:
    """Whether an open file is still the one at ``path``."""
    try:
        found, opened = os.lstat(path), os.fstat(handle)
    except FileNotFoundError:
        return False
    return (found.st_ino, found.st_dev) == (opened.st_ino, opened.st_dev)

"""Directories that no other user can change, opened by handle.

A path is walked from the root, part by part, and each part is opened without following a link and
then checked. A directory is safe if root or this user owns it and nobody else may write to it. In a
directory with the sticky bit (``/tmp``) others may write, but not replace what this user owns.
Links count only if root or this user made them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from ..errors import DirectoryError

_PATH: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS: Final = 40
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_kept: dict[tuple[int, int], int] = {}
"""Handles that stay open, by device and inode: the names of opened libraries contain them."""


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
    """Create ``path`` for this user alone, with missing ancestors (mode 0700), and return it.

    ``variable`` is the environment variable to name in errors.

    Raises:
        DirectoryError: it cannot be created, belongs to another user, or others may write to it or
            replace it.
    """
    os.close(_open(path, variable))
    return path


def require_writable(path: Path, variable: str) -> None:
    """Refuse a directory in which nothing can be made.

    Raises:
        DirectoryError: this user may not write to it, or its file system is read-only or full.
    """
    from .temporaries import temporary_directory  # only where something is built

    try:
        with temporary_directory(path):
            pass
    except OSError as error:
        hint = f"Set {variable} to another directory."
        raise DirectoryError(f"The directory {path} cannot be written to: {error.strerror}.", hint=hint) from error


def by_handle(path: Path, variable: str) -> Path:
    """Return a name of the private directory ``path`` that stays this directory, whatever happens to its ancestors.

    It is ``/proc/self/fd/<handle>``. The handle stays open, and each directory has one. Where there
    is no ``/proc``, it is ``path``.

    Raises:
        DirectoryError: as :func:`private_directory`.
    """
    handle = _open(path, variable)
    status = os.fstat(handle)
    key = status.st_dev, status.st_ino
    kept = _kept.get(key)
    if kept is not None and _is_open_as(kept, key):
        os.close(handle)
        handle = kept
    _kept[key] = handle
    name = Path(f"/proc/self/fd/{handle}")
    return name if name.is_dir() else path


def require_unwritable(path: Path, variable: str) -> None:
    """Refuse a file that another user could change or replace.

    Raises:
        DirectoryError: one of its directories belongs to another user, or others may write to it.
        OSError: it is missing.
    """
    hint = f"Set {variable} to a file that only you can write to."
    os.close(_walk(path.absolute(), make=False, hint=hint))


def _is_open_as(handle: int, key: tuple[int, int]) -> bool:
    """Whether nobody closed the handle and opened something else by the same number."""
    try:
        status = os.fstat(handle)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == key


def _open(path: Path, variable: str) -> int:
    hint = f"Set {variable} to a directory that only you can write to."
    try:
        handle = _walk(path, make=True, hint=hint)
    except OSError as error:
        raise DirectoryError(f"The directory {path} cannot be used: {error.strerror}.", hint=hint) from error
    status = os.fstat(handle)
    try:
        if not stat.S_ISDIR(status.st_mode):
            raise DirectoryError(f"The directory {path} cannot be used: it is not a directory.", hint=hint)
        if status.st_uid != os.geteuid():
            raise DirectoryError(f"The directory {path} belongs to another user (uid {status.st_uid}).", hint=hint)
        if status.st_mode & _OTHERS:
            raise DirectoryError(f"Other users may write to the directory {path}.", hint=f"Run `chmod 700 {path}`. {hint}")
    except BaseException:
        os.close(handle)
        raise
    return handle


def _walk(path: Path, *, make: bool, hint: str) -> int:
    """Return a handle of the directory at the absolute ``path`` after checking every part of the way."""
    handle = os.open("/", _PATH)
    trusted = {0, os.geteuid(), os.fstat(handle).st_uid}  # the owner of / is root, whatever a namespace calls it
    parts = [*reversed(path.parts[1:])]
    links = 0
    try:
        while parts:
            part = parts.pop()
            child = _step(handle, part, make=make)
            status = os.fstat(child)
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink("", dir_fd=child)
                os.close(child)
                links += 1
                if links > _MAX_LINKS:
                    raise DirectoryError(f"The path {path} has too many symbolic links.", hint=hint)
                if status.st_uid not in trusted:
                    raise DirectoryError(f"The symbolic link {part!r} of {path} belongs to uid {status.st_uid}.", hint=hint)
                parts += reversed(Path(target).parts)
                if os.path.isabs(target):
                    parts.pop()
                    child = os.open("/", _PATH)
                else:
                    continue
            os.close(handle)
            handle = child
            if parts:
                _check_ancestor(os.fstat(handle), part, path, trusted, hint)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _step(handle: int, part: str, *, make: bool) -> int:
    """Open an entry of a directory, or the new directory that is made there."""
    while True:
        try:
            return os.open(part, _PATH, dir_fd=handle)
        except FileNotFoundError:
            if not make:
                raise
        try:
            os.mkdir(part, 0o700, dir_fd=handle)
        except FileExistsError:
            make = False  # another process was faster; or it is gone again, and that is an error


def _check_ancestor(status: os.stat_result, part: str, path: Path, trusted: set[int], hint: str) -> None:
    """Refuse a directory on the way in which another user could replace the next part."""
    if not stat.S_ISDIR(status.st_mode):
        return  # the next step fails with the system's own message
    if status.st_uid not in trusted:
        raise DirectoryError(f"The directory {part!r} above {path} belongs to another user (uid {status.st_uid}).", hint=hint)
    if status.st_mode & _OTHERS and not status.st_mode & stat.S_ISVTX:
        raise DirectoryError(f"Other users may write to the directory {part!r} above {path}.", hint=hint)

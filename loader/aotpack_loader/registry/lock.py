"""The lock file ``aotpack.lock``: which digest a reference stands for, so that a moved tag changes nothing.

```json
{"version": 1, "bundles": {"oci://host/repository:tag": "sha256:…"}}
```

An entry decides which bundle is pulled. It is no permission to run native code.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Final

from ..archive.digest import is_digest
from ..archive.temporaries import temporary_file
from ..errors import LockError
from .reference import Reference

FILE_NAME: Final = "aotpack.lock"
_MAX_BYTES = 4 << 20


def read_lock(path: str | os.PathLike[str], *, is_named: bool = True) -> dict[str, str]:
    """Return the entries of a lock file; none if there is no such file.

    A file that nobody named, but that lies in the working directory, must be this user's or root's.

    Raises:
        LockError: it cannot be read, is not a lock file, or is another user's.
    """
    try:
        owners = {os.lstat(path).st_uid}
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # NONBLOCK: a FIFO must not hang
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise LockError(f"The lock file {os.fspath(path)} cannot be read: {error.strerror}.") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise LockError(f"The lock file {os.fspath(path)} is not a file.")
        if not is_named and (not {*owners, status.st_uid} <= {0, os.geteuid()} or status.st_mode & stat.S_IWOTH):
            raise LockError(
                f"Another user owns the lock file {os.path.abspath(path)}, or any user may write to it: it is not used unasked.",
                hint=f"Remove it, or name it: lock={os.fspath(path)!r} or $AOTPACK_LOCK.",
            )
        data = os.read(handle, _MAX_BYTES + 1)
    except OSError as error:
        raise LockError(f"The lock file {os.fspath(path)} cannot be read: {error.strerror}.") from error
    finally:
        os.close(handle)
    try:
        document = json.loads(data, object_pairs_hook=_distinct) if len(data) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        document = None
    found = document.get("bundles") if isinstance(document, dict) and document.get("version") == 1 else None
    if not isinstance(found, dict) or not all(isinstance(value, str) and is_digest(value) for value in found.values()):
        raise LockError(f"{os.fspath(path)} is not a lock file of aotpack.", hint="Write it with `aotpack pull --lock`.")
    return found


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a name that occurs twice: readers of the file would disagree about its digest."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def write_lock(path: str | os.PathLike[str], name: str, digest: str) -> None:
    """Add an entry to a lock file, or change it.

    Raises:
        LockError: it cannot be written, or is not a lock file.
    """
    entries = {**read_lock(path), name: digest}
    text = json.dumps({"version": 1, "bundles": dict(sorted(entries.items()))}, indent=2) + "\n"
    try:
        with temporary_file(Path(path).absolute().parent) as temporary:
            temporary.file.write(text.encode())
            temporary.move_to(Path(path))
    except OSError as error:
        raise LockError(f"The lock file {os.fspath(path)} cannot be written: {error.strerror}.") from error


def locked(reference: Reference, path: str | os.PathLike[str], *, required: bool = False, is_named: bool = True) -> Reference:
    """Return the reference with the digest that the lock file has for it.

    Without an entry it is returned unchanged, unless one is ``required``. ``is_named`` as in :func:`read_lock`.

    Raises:
        LockError: an entry is required and missing, or the reference names another digest.
    """
    found = read_lock(path, is_named=is_named).get(reference.name)
    if found is None:
        if required:
            hint = f"Add it with `aotpack pull {reference} --lock`."
            raise LockError(f"The lock file {os.fspath(path)} has no entry for {reference.name}.", hint=hint)
        return reference
    if reference.digest not in ("", found):
        raise LockError(f"The lock file {os.fspath(path)} has {found} for {reference.name}, and {reference} is wanted.")
    return reference.at(found)

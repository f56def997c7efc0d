"""The lock file ``aotpack.lock``: which digest a reference stands for, so that a moved tag changes nothing.

```json
{"version": 1, "bundles": {"oci://host/repository:tag": "sha256:…"}}
```

An entry decides which bundle is pulled. It is no permission to run native code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from ..archive.digest import is_digest
from ..archive.temporaries import temporary_file
from ..errors import LockError
from .reference import Reference

FILE_NAME: Final = "aotpack.lock"
_MAX_BYTES = 4 << 20


def read_lock(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the entries of a lock file; none if there is no such file.

    Raises:
        LockError: it cannot be read, or is not a lock file.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise LockError(f"The lock file {os.fspath(path)} cannot be read: {error.strerror}.") from error
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


def locked(reference: Reference, path: str | os.PathLike[str], *, required: bool = False) -> Reference:
    """Return the reference with the digest that the lock file has for it.

    Without an entry it is returned unchanged, unless one is ``required``.

    Raises:
        LockError: an entry is required and missing, or the reference names another digest.
    """
    found = read_lock(path).get(reference.name)
    if found is None:
        if required:
            hint = f"Add it with `aotpack pull {reference} --lock`."
            raise LockError(f"The lock file {os.fspath(path)} has no entry for {reference.name}.", hint=hint)
        return reference
    if reference.digest not in ("", found):
        raise LockError(f"The lock file {os.fspath(path)} has {found} for {reference.name}, and {reference} is wanted.")
    return reference.at(found)

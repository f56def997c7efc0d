"""Reads small files that a user names: keys and signatures."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aotpack_loader.errors import AotpackError

_MAX_BYTES: Final = 64 << 20


def read_small(path: Path, what: str) -> bytes:
    """Return the content of a file, which may be a pipe.

    Raises:
        AotpackError: it cannot be read, or has more than 64 MiB, as devices may.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise AotpackError(f"The {what} {path} cannot be read: {error.strerror}.") from error
    if len(data) > _MAX_BYTES:
        raise AotpackError(f"The {what} {path} has more than {_MAX_BYTES} bytes.")
    return data

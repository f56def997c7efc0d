"""Where a bundle may be written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from aotpack_loader.archive.temporaries import is_still_at, temporary_directory
from aotpack_loader.errors import BuildError

_LAYOUT = {"blobs", "index.json", "oci-layout"}


def check_destination(out: str | os.PathLike[str], layout: str) -> tuple[Path, bool]:
    """Return the path of a bundle to write, and whether it is a directory.

    Raises:
        BuildError: nothing can be written there. A file does not replace a directory, nor a
            directory a file, nor a bundle a directory of other files.
    """
    path = Path(os.path.abspath(out))
    as_directory = layout == "directory" or os.fspath(out).endswith("/")
    with new_directory(parent_of(path)):
        pass
    if not as_directory:
        if path.is_dir():
            raise BuildError(f"{path} is a directory.", hint="End the path in '/' to write an unpacked bundle there.")
        if path.exists() and not path.is_file():  # a device, a pipe: it would be replaced
            raise BuildError(f"{path} is no regular file, so no bundle is written there.")
        return path, as_directory
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise BuildError(f"{path} is not a directory.")
    if _names(path) not in (set(), _LAYOUT):  # other files, which replacing it would lose
        raise BuildError(f"The directory {path} is not empty and holds no bundle.", hint="Choose another directory.")
    return path, as_directory


def parent_of(path: Path) -> Path:
    """Return the directory that ``path`` is to be made in.

    Raises:
        BuildError: there is none.
    """
    if not path.parent.is_dir():
        raise BuildError(f"There is no directory {path.parent} to write the bundle to.")
    return path.parent


@contextlib.contextmanager
def new_directory(parent: Path) -> Iterator[Path]:
    """Make a temporary directory in that of a bundle.

    Raises:
        BuildError: it cannot be made.
    """
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(temporary_directory(parent))
        except OSError as error:
            raise BuildError(
                f"Nothing can be written to {parent}: {error.strerror}.", hint="Choose a directory that you may write to."
            ) from error
        yield made


def _names(path: Path) -> set[str]:
    """Return the names in the directory ``path``, none if there is no such directory.

    Another process may replace the directory and remove this one meanwhile. Then the new one is read.
    """
    while True:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return set()
        try:
            names = set(os.listdir(handle))
            if is_still_at(handle, path):
                return names
        finally:
            os.close(handle)

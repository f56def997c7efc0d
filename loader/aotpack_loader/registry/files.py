"""Bundle files in other stores (``s3://``, ``gs://``, ``file://``, …), through fsspec and its drivers.

A file is copied to the cache once. A store's own version of it (an ETag, or size and time) tells
whether the copy is still the same file. Its digests are checked as those of any file.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..archive.bundle import Bundle
from ..archive.cache import cache_root, is_private, private_directory
from ..archive.digest import hex_part, sha256
from ..archive.temporaries import temporary_file
from ..errors import AotpackError, BundleNotFoundError, RegistryError


def fetch_file(url: str) -> tuple[Path, bool]:
    """Bring the bundle file at ``url`` into the cache.

    Returns its path, and whether it is a local file. That is not copied, and a policy knows it by its path.

    Raises:
        BundleNotFoundError: there is no such file.
        RegistryError: it cannot be read, or the driver for the store is not installed.
    """
    with _translated(url):
        store, path = _open(url)
        if "file" in _protocols(store):
            return Path(path), True
        name = hex_part(sha256(f"{url}\n{store.ukey(path)}".encode()))
        folder = private_directory(cache_root() / "registry" / "files", "AOTPACK_CACHE")
        target = folder / f"{name}.aotpack"
        if not is_private(target):
            with temporary_file(folder, 0o600) as temporary:
                store.get_file(path, str(temporary.path))
                temporary.move_to(target)
        return target, False


def copy_file(url: str, out: Path) -> Path:
    """Copy the bundle file at ``url`` to ``out``, complete or not at all, and return its path. The cache is not used.

    Raises:
        BundleError: it is not a valid bundle.
        RegistryError: it cannot be read or written, or the driver for the store is not installed.
    """
    with _translated(url):
        store, path = _open(url)
        with temporary_file(out.absolute().parent) as temporary:
            store.get_file(path, str(temporary.path))
            with Bundle.open(temporary.path) as bundle:
                bundle.verify()
            temporary.move_to(out, durable=True)
        return out


def put_file(source: Path, url: str) -> None:
    """Copy the bundle file ``source`` to ``url``. A store shows it when it is complete.

    Raises:
        RegistryError: it cannot be written, or the driver for the store is not installed.
    """
    with _translated(url):
        store, path = _open(url)
        if "file" not in _protocols(store):
            store.put_file(str(source), path)
            return
        with temporary_file(Path(path).parent) as temporary, open(source, "rb") as file:
            shutil.copyfileobj(file, temporary.file)
            temporary.move_to(Path(path), durable=True)


def _open(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise RegistryError(f"{url} needs the package fsspec.", hint="Run `pip install 'aotpack-loader[files]'`.") from error
    if {".", ".."} & set(unquote(url).replace("\\", "/").split("/")):
        raise RegistryError(f"{url} goes to a parent directory.", hint="Write the path without '.' and '..': policies match it.")
    try:
        store, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise RegistryError(
            f"{url} cannot be opened: {error}.", hint="Install fsspec's driver, such as s3fs or gcsfs."
        ) from error
    return store, str(path)


def _protocols(store: Any) -> tuple[str, ...]:
    found = store.protocol
    return (found,) if isinstance(found, str) else tuple(found)


@contextlib.contextmanager
def _translated(url: str) -> Any:
    """Raise errors of a store as ours.

    Most drivers derive theirs from OSError. Those of an HTTP library of their own need not.
    """
    try:
        yield
    except FileNotFoundError as error:
        if isinstance(error, AotpackError):
            raise
        raise BundleNotFoundError(f"There is no bundle at {url}.") from error
    except AotpackError:
        raise
    except Exception as error:
        raise RegistryError(f"{url} cannot be read or written: {type(error).__name__}{_reason(error)}.") from error


def _reason(error: Exception) -> str:
    """Return the system's reason for an error. Texts of drivers may hold credentials, and are left out."""
    return f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""

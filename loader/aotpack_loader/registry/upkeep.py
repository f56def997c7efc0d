"""Looks after the cache of bundles from registries: lists, verifies and prunes it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..archive.bundle import Bundle
from ..archive.digest import PREFIX
from ..archive.temporaries import temporary_directory
from ..errors import AotpackError
from .store import BlobCache

_HOUR = 3600


@dataclass(frozen=True)
class CachedBundle:
    """An unpacked bundle of the cache: its program's name, the targets that are here, and bytes on disk.

    ``used`` is the time of its last pull or load, in seconds since the epoch.
    """

    digest: str
    name: str
    targets: list[str]
    size: int
    used: float


@dataclass
class Freed:
    """What a prune removed: bundles by digest, the number of blobs and partial files, and bytes."""

    bundles: list[str]
    blobs: int = 0
    size: int = 0


def bundles(cache: BlobCache) -> list[CachedBundle]:
    """Return the bundles of the cache, the most recently used first."""
    found = []
    for folder in _folders(cache):
        size = sum(path.stat().st_size for path in (folder / "blobs" / "sha256").glob("*"))
        try:
            with Bundle.open(folder) as bundle:
                name, targets = bundle.program.name, [target for target in bundle.targets if bundle.is_here(target)]
        except AotpackError:
            name, targets = "(incomplete)", []  # the pull that made it did not finish
        found.append(CachedBundle(PREFIX + folder.name, name, targets, size, folder.stat().st_mtime))
    return sorted(found, key=lambda entry: -entry.used)


def verify(cache: BlobCache) -> dict[str, str]:
    """Hash every blob and remove those that are damaged. Returns what was wrong, by digest."""
    wrong = {}
    for path in sorted(cache.blobs.iterdir()):
        with open(path, "rb", buffering=0) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != path.name:
            wrong[PREFIX + path.name] = f"its content has digest {PREFIX}{found}"
            for folder in _folders(cache):
                (folder / "blobs" / "sha256" / path.name).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
    return wrong


def prune(cache: BlobCache, *, unused_for: float = 0.0, dry_run: bool = False) -> Freed:
    """Remove bundles that were not used for so many seconds, and blobs that no bundle has.

    Blobs and partial files of the last hour stay, because a pull may be at work.
    """
    now = time.time()
    freed = Freed([])
    kept: set[str] = set()
    for folder in _folders(cache):
        names = {path.name for path in (folder / "blobs" / "sha256").glob("*")}
        if now - folder.stat().st_mtime < unused_for:
            kept |= names
            continue
        freed.bundles.append(PREFIX + folder.name)
        if not dry_run:
            with temporary_directory(cache.partial) as hidden:
                os.rename(folder, hidden)  # at once, so that nobody opens half of it; the end of the block removes it
    for path in cache.blobs.iterdir():
        if path.name not in kept and now - path.stat().st_mtime > (_HOUR if unused_for else 0):
            _remove(path, freed, dry_run=dry_run)
    for path in cache.partial.iterdir():
        if not path.is_dir() and _is_free(path) and now - path.stat().st_mtime > (_HOUR if unused_for else 0):
            _remove(path, freed, dry_run=dry_run)
    return freed


def _remove(path: Path, freed: Freed, *, dry_run: bool) -> None:
    freed.blobs += 1
    freed.size += path.stat().st_size
    if not dry_run:
        path.unlink(missing_ok=True)


def _is_free(path: Path) -> bool:
    """Whether no process writes a partial file."""
    with open(path, "rb", buffering=0) as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _folders(cache: BlobCache) -> Iterator[Path]:
    return (path for path in sorted(cache.bundles.iterdir()) if path.is_dir() and len(path.name) == 64)

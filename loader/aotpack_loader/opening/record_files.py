"""Where records of starts are kept, and when one fits.

A record holds what a load of native code got from a bundle's documents, so the next load of the same
bundle need not read them (:mod:`.from_record`). It is a file in the user's cache, beside the
extracted code. Its name is a hash of everything that decides what a load gets: the bundle's digest,
the requested target, this loader, torch and Python. Only this user can write to it, and a damaged
record counts as none. Whether code may run is never recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Final

import torch

from ..archive import cache as files
from ..archive.private import by_handle
from ..options import LoadOptions

SWITCH: Final = "AOTPACK_RECORDED_STARTS"

_ANY: Final = ("operators", "subclasses", "backend", "trust")
"""Options that a record does not fix: of the first two there must be none, and a start compares the others with the record."""
_USUAL: Final = LoadOptions()


def are_used(options: LoadOptions) -> bool:
    """Whether loads with these options are recorded: those that have defaults, and not with ``AOTPACK_RECORDED_STARTS=0``."""
    named = options.operators, options.subclasses
    if os.environ.get(SWITCH) == "0" or any(named) or any(isinstance(names, str) for names in named):
        return False  # a text is an error, an empty one too
    return all(name in _ANY or value == usual for name, value, usual in zip(options._fields, options, _USUAL, strict=True))


def read(root: Path, bundle: str, backend: str | None) -> Any:
    """Return the record for a bundle's digest and the requested target from the cache ``root``; None: there is none.

    Raises:
        DirectoryError: the cache cannot be used.
    """
    found = files.read_private(_path(root, bundle, backend))
    if found is None:
        return None
    digest, _, text = found.partition(b"\n")
    return json.loads(text) if hashlib.sha256(text).hexdigest().encode() == digest else None


def write(bundle: str, backend: str | None, record: object) -> None:
    """Keep a record.

    Raises:
        OSError: it cannot be written.
        DirectoryError: the cache cannot be used.
    """
    text = json.dumps(record, separators=(",", ":")).encode()
    files.write_whole(_path(files.cache_root(), bundle, backend), hashlib.sha256(text).hexdigest().encode() + b"\n" + text)


def _path(root: Path, bundle: str, backend: str | None) -> Path:
    key = json.dumps([bundle, backend, torch.__version__, EXTENSION_SUFFIXES[0], _loader()])
    return by_handle(root / "starts", "AOTPACK_CACHE") / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


@cache
def _loader() -> str:
    """Identify this loader by its version and all of its files: a record of another loader does not fit."""
    root = os.path.dirname(os.path.dirname(__file__))
    text = "\n".join([sys.modules["aotpack_loader"].__version__, *sorted(_files(root, len(root)))])
    return hashlib.sha256(text.encode()).hexdigest()


def _files(folder: str, length: int) -> Iterator[str]:
    for entry in os.scandir(folder):
        if entry.name.endswith(".py"):
            status = entry.stat()
            yield f"{entry.path[length:]} {status.st_size} {status.st_mtime_ns}"
        elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
            yield from _files(entry.path, length)

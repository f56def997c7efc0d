"""The local compile cache. It reuses the compiled code of a graph or of a source that has not changed.

The key of a graph's code has the canonical bytes of the graph, and everything else that decides its
code: aotpack's own sources, the toolchain, the instruction set and the options. The key of an object
file has the generated source, the compiler and its flags. So a graph whose key changed is lowered
again, but only compiled again if its source is another one.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from aotpack_loader.archive.cache import cache_root, private_directory, read_private
from aotpack_loader.archive.temporaries import temporary_file
from aotpack_loader.format import codec, schema

_VARIABLE = "AOTPACK_CACHE"
_FILES = ("code", "fallbacks", "facts", "kernels")


@functools.cache
def revision_of(*folders: Path) -> str:
    """Return a hash of the source files in some folders.

    It is part of the key of the files that this code makes.
    """
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".cpp", ".h", ".json", ".map")):
            digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


class CompileCache:
    """Files by key in the user's cache directory.

    Args:
        use: ``True`` for all, ``"objects"`` to lower every graph and reuse compiled sources, ``False``
            to compile everything again.
    """

    def __init__(self, use: bool | Literal["objects"] = True) -> None:
        self._graphs, self._objects = use is True, bool(use)
        self.hits = 0
        self.misses = 0

    def find(self, source: schema.Graph | bytes, options: Mapping[str, str]) -> dict[str, bytes] | None:
        """Return the files compiled from ``source`` with ``options``, or None."""
        found = _read(_folder("compiled", source, options)) if self._graphs else None
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def keep(self, source: schema.Graph | bytes, options: Mapping[str, str], files: Mapping[str, bytes]) -> None:
        """Store the compiled files."""
        if self._graphs:
            _write(_folder("compiled", source, options), files)

    def find_object(self, source: bytes, options: Mapping[str, str]) -> bytes | None:
        """Return the object file that a compiler made of ``source`` with ``options``, or None."""
        found = _read(_folder("objects", source, options)) if self._objects else None
        return None if found is None else found["code"]

    def keep_object(self, source: bytes, options: Mapping[str, str], compiled: bytes) -> None:
        """Store an object file."""
        if self._objects:
            _write(_folder("objects", source, options), {"code": compiled})


def _folder(kind: str, source: schema.Graph | bytes, options: Mapping[str, str]) -> Path:
    content = source if isinstance(source, bytes) else codec.encode(source)
    parts = [hashlib.sha256(content).hexdigest(), dict(options)]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return private_directory(cache_root() / kind, _VARIABLE) / key


def _read(folder: Path) -> dict[str, bytes] | None:
    """Return the files of an entry, or None if one is missing, damaged, or not of this user alone.

    Raises:
        DirectoryError: the entry belongs to another user, or others may write to it.
    """
    if not folder.exists():
        return None
    private_directory(folder, _VARIABLE)
    try:
        sums = json.loads(read_private(folder / "complete") or b"{}")
    except ValueError:
        return None
    files = {name: data for name in _FILES if (data := read_private(folder / name)) is not None and name in sums}
    good = all(hashlib.sha256(data).hexdigest() == sums[name] for name, data in files.items())
    return files if good and files and files.keys() == sums.keys() else None


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write an entry file by file, and rename each file to its final name.

    The checksums come last.
    """
    private_directory(folder, _VARIABLE)
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    for name, data in [*files.items(), ("complete", json.dumps(sums).encode())]:
        with temporary_file(folder, 0o600) as temporary:
            temporary.file.write(data)
            temporary.move_to(folder / name)

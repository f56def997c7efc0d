"""The local compile cache. It reuses the compiled code of a graph that has not changed.

The key is made from the canonical bytes of the graph, or from those of a source. It also includes
everything else that the code depends on: the toolchain, the instruction set and the options.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from aotpack_loader.archive.cache import cache_root
from aotpack_loader.archive.temporaries import temporary_file
from aotpack_loader.format import codec, schema

_FILES = ("code", "fallbacks", "facts")


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

    With ``enabled`` false, everything is compiled again.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.hits = 0
        self.misses = 0

    def find(self, source: schema.Graph | bytes, options: Mapping[str, str]) -> dict[str, bytes] | None:
        """Return the files compiled from ``source`` with ``options``, or None."""
        folder = self._folder(source, options)
        found = _read(folder) if self.enabled and (folder / "complete").exists() else None
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def keep(self, source: schema.Graph | bytes, options: Mapping[str, str], files: Mapping[str, bytes]) -> None:
        """Store the compiled files."""
        if self.enabled:
            _write(self._folder(source, options), files)

    def _folder(self, source: schema.Graph | bytes, options: Mapping[str, str]) -> Path:
        content = source if isinstance(source, bytes) else codec.encode(source)
        key = hashlib.sha256(content + json.dumps(dict(options), sort_keys=True).encode()).hexdigest()
        return cache_root() / "compiled" / key[:2] / key


def _read(folder: Path) -> dict[str, bytes] | None:
    """Return the files of an entry, or None if its checksums do not match."""
    sums = json.loads((folder / "complete").read_text())
    files = {name: (folder / name).read_bytes() for name in sums if name in _FILES}
    good = all(hashlib.sha256(data).hexdigest() == sums[name] for name, data in files.items())
    return files if good and files.keys() == sums.keys() else None


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write an entry file by file, and rename each file to its final name.

    The checksums come last.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    for name, data in [*files.items(), ("complete", json.dumps(sums).encode())]:
        with temporary_file(folder, 0o600) as temporary:
            temporary.file.write(data)
            temporary.move_to(folder / name)

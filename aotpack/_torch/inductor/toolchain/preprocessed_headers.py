"""Remembers what the preprocessor writes for torch's headers.

Inductor finds a precompiled header by the hash of the preprocessed one. It runs the preprocessor
for that in every process and for each set of options, which takes 0.4 s.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import torch

from aotpack_loader.archive.cache import read_private
from aotpack_loader.archive.temporaries import temporary_file

ENVIRONMENT: Final = ("CPATH", "CPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX")
"""Variables that change where the compiler looks for headers."""
_SEPARATOR: Final = re.compile(r"(?<!\\)\s+")


class _Record(msgspec.Struct, frozen=True):
    """The hash of an output, and the state of each file that it was made of."""

    digest: str
    files: list[tuple[str, int, int]]


def preprocess(command: str, cwd: str, *, compiler: str, folder: Path, run: Callable[[str, str], None]) -> None:
    """Write the hash of a preprocessed header to the output of ``command``.

    The preprocessor runs only if a file that it read has changed since, by size or time. A new header
    that hides one of these is not noticed, nor is it by ccache.

    Args:
        command: the preprocessor's, with the source by an absolute path.
        cwd: the directory to run it in.
        compiler: the compiler's version.
        folder: a private directory for records.
        run: runs a command in a directory.
    """
    words = shlex.split(command)
    target = Path(words[words.index("-o") + 1])
    source = next(Path(word) for word in words if word.endswith(".hpp"))
    options = [word for word in words if word not in (os.fspath(target), os.fspath(source))]
    environment = [os.environ.get(name) for name in ENVIRONMENT]
    key = msgspec.json.encode([options, source.read_text(), compiler, str(torch.__version__), environment])
    path = folder / f"{hashlib.sha256(key).hexdigest()[:32]}.preprocessed.json"
    digest = _known(path)
    if digest is None:
        read = target.with_suffix(".d")
        run(f"{command} -MD -MF {shlex.quote(os.fspath(read))}", cwd)
        digest = hashlib.sha256(target.read_bytes()).hexdigest()
        files = [(name, *state) for name in _listed(read.read_text(), source) if (state := _state(name)) is not None]
        with temporary_file(folder, 0o600) as temporary:
            temporary.file.write(msgspec.json.encode(_Record(digest, files)))
            temporary.move_to(path)
    target.write_text(digest)


def _known(path: Path) -> str | None:
    """The hash of a record of this user, if all its files are as they were."""
    try:
        record = msgspec.json.decode(read_private(path) or b"", type=_Record)
    except msgspec.DecodeError:
        return None  # there is none, or a damaged one
    return record.digest if all(_state(name) == (size, changed) for name, size, changed in record.files) else None


def _state(name: str) -> tuple[int, int] | None:
    """Size in bytes and time of change in ns, or null for a file that is gone."""
    try:
        status = os.stat(name)
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


def _listed(rule: str, source: Path) -> list[str]:
    """The files of a rule for make but for ``source``, which has another name each time."""
    _, _, listed = rule.partition(": ")
    names = [re.sub(r"\\(.)", r"\1", name).replace("$$", "$") for name in _SEPARATOR.split(listed.replace("\\\n", " ")) if name]
    return [name for name in names if name != os.fspath(source)]

"""Keeps Inductor's files in directories that no other user can enter.

Inductor's default is ``torchinductor_<user>`` in the directory for temporary files. Anyone can make
that directory first, and Inductor accepts it whoever owns it. What it finds there (sources, objects,
precompiled headers) becomes code of the bundle. Inductor makes directories by the umask, so a build
has a directory of its own (``aotpack``) above them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torch._inductor import codecache
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from aotpack_loader.archive.cache import cache_root
from aotpack_loader.archive.private import private_directory
from aotpack_loader.errors import DirectoryError

from ...api.patching import constant

_VARIABLE: Final = "TORCHINDUCTOR_CACHE_DIR"


@contextlib.contextmanager
def variable(name: str, value: str | None) -> Iterator[None]:
    """Set a variable of the environment inside the block, or remove it. Other variables stay, for other threads."""
    before = os.environ.get(name)
    _put(name, value)
    try:
        yield
    finally:
        _put(name, before)


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


@contextlib.contextmanager
def private_directories() -> Iterator[None]:
    """Let Inductor work in private directories: below its defaults where these are safe, else below ``AOTPACK_CACHE``.

    Raises:
        DirectoryError: ``TORCHINDUCTOR_CACHE_DIR`` names a directory that others may write to.
    """
    default = Path(default_cache_dir())
    try:
        shared = _own(default, _VARIABLE)
    except DirectoryError:
        shared = _own(cache_root() / "inductor", "AOTPACK_CACHE")
        codecache._precompile_header.cache_clear()  # a header of this process may lie in the other directory
    given = os.environ.get(_VARIABLE)  # Inductor itself sets it to its default
    chosen = shared if given is None or Path(given) == default else _own(Path(given).absolute(), _VARIABLE)
    headers = os.path.join(shared, "precompiled_headers")
    with (
        variable(_VARIABLE, os.fspath(chosen)),
        constant("inductor-tool-chain", codecache, "_HEADER_DIR", headers),
        constant("inductor-tool-chain", codecache, "_HEADER_LOCK_DIR", os.path.join(headers, "locks")),
    ):
        yield


def _own(folder: Path, variable: str) -> Path:
    """Return a directory in ``folder`` that only this user can enter, whatever mode the directories below it get."""
    own = private_directory(folder / "aotpack", variable)
    own.chmod(0o700)
    return own

"""Keeps Inductor's files in directories that no other user can change.

Inductor's default is ``torchinductor_<user>`` in the directory for temporary files. Anyone can make
that directory first, and Inductor accepts it whoever owns it. What it finds there (sources, objects,
precompiled headers) becomes code of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from unittest import mock

from torch._inductor import codecache
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from aotpack_loader.archive.cache import cache_root
from aotpack_loader.archive.private import private_directory
from aotpack_loader.errors import DirectoryError

from .api.patching import hooked

_VARIABLE: Final = "TORCHINDUCTOR_CACHE_DIR"


@contextlib.contextmanager
def private_directories() -> Iterator[None]:
    """Let Inductor work in private directories: its own defaults where they are, else below ``AOTPACK_CACHE``.

    Raises:
        DirectoryError: ``TORCHINDUCTOR_CACHE_DIR`` names a directory that others may write to.
    """
    default = Path(default_cache_dir())
    try:
        shared = private_directory(default, _VARIABLE)
    except DirectoryError:
        shared = private_directory(cache_root() / "inductor", "AOTPACK_CACHE")
        codecache._precompile_header.cache_clear()  # a header of this process may lie in the other directory
    given = os.environ.get(_VARIABLE)  # Inductor itself sets it to its default
    chosen = shared if given is None or Path(given) == default else private_directory(Path(given).absolute(), _VARIABLE)
    headers = os.path.join(shared, "precompiled_headers")
    with (
        mock.patch.dict(os.environ, {_VARIABLE: os.fspath(chosen)}),
        hooked("inductor-tool-chain", codecache, "_HEADER_DIR", headers),
        hooked("inductor-tool-chain", codecache, "_HEADER_LOCK_DIR", os.path.join(headers, "locks")),
    ):
        yield

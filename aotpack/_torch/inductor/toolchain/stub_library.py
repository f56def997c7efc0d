"""Links compiled code to a small library with the name of ``libtorch_cpu``.

The linker reads all 74,000 names of torch's library, which takes three quarters of a link. Compiled code
uses only torch's C interface, so the small library has the names of that. It also has the names of
``std`` that torch's library defines. Code imports these without a version, as from torch's library.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

import torch

from aotpack_loader.archive.cache import is_private, private_directory
from aotpack_loader.archive.temporaries import temporary_directory

_NAME: Final = "torch_cpu"
_LIBRARY: Final = Path(torch.__file__).parent / "lib" / f"lib{_NAME}.so"
_KEPT: Final = re.compile(r"(?:aoti_|torch_)\w+|_Z(?:T[ISV])?(?:N[KO]?)?(?:S[abdiost]|9__gnu_cxx)\w{,200}")
"""Names of the C interface, and mangled names of ``std``. Longer ones are of torch's types."""
_FUNCTIONS: Final = "TWi"
"""Kinds of symbols, as ``nm`` writes them, that are functions; others are data."""


def linked_to_stub(link: str, folder: Path) -> str:
    """The linker's command with the stub instead of torch's library.

    ``folder`` keeps stubs for other builds. The command stays as it is if torch has no such library,
    as a build of torch from source may.
    """
    words = shlex.split(link)
    if f"-l{_NAME}" not in words or not _LIBRARY.exists():
        return link
    stub = _stub(folder, words[0])
    # Required by name even if nothing is used, as torch's own is.
    required = ["-Wl,--push-state,--no-as-needed", os.fspath(stub), "-Wl,--pop-state"]
    return shlex.join(new for word in words for new in (required if word == f"-l{_NAME}" else [word]))


def _stub(folder: Path, compiler: str) -> Path:
    """The stub's path. It is made if this torch has none yet."""
    status = _LIBRARY.stat()
    key = hashlib.sha256(repr((torch.__version__, status.st_size, status.st_mtime_ns, _KEPT.pattern)).encode()).hexdigest()[:16]
    made = private_directory(folder / f"stub-{key}", "AOTPACK_CACHE") / _LIBRARY.name
    if not is_private(made):
        with temporary_directory(folder) as temporary:
            source = temporary / "names.s"
            source.write_text("".join(_definitions()))
            shared = ["-shared", "-nostdlib", f"-Wl,-soname,{_LIBRARY.name},-z,noexecstack"]
            _run([compiler, *shared, "-o", os.fspath(temporary / made.name), os.fspath(source)])
            os.chmod(temporary / made.name, 0o700)
            os.replace(temporary / made.name, made)
    return made


def _definitions() -> list[str]:
    """Assembly that defines each kept name of torch's library."""
    found = []
    for line in _run(["nm", "-D", "--defined-only", os.fspath(_LIBRARY)]).splitlines():
        *_, kind, name = line.split()
        if _KEPT.fullmatch(name):
            found.append(f".globl {name}\n.type {name},@{'function' if kind in _FUNCTIONS else 'object'}\n{name}:\n")
    return found


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

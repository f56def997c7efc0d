"""Compiles a generated source, or finds what a compiler made of the same source before.

An object file depends on its source, the compiler, the flags and torch's headers. Paths are no part of
that: flags keep them out of the code (``-ffile-prefix-map``, ``#line``), and debug sections are stripped.
ccache works alike, but must run the preprocessor first.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

import torch

from .preprocessed_headers import ENVIRONMENT

_HEADERS: Final = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "inductor"
_one_at_a_time: Final = Lock()
_FOLDER: Final = re.compile(r"/(?:[^\s/=:]+/)*")


class ObjectCache(Protocol):
    """Object files by the content that they are made of."""

    def find_object(self, source: bytes, options: Mapping[str, str]) -> bytes | None: ...

    def keep_object(self, source: bytes, options: Mapping[str, str], compiled: bytes) -> None: ...


def compile_object(command: str, cwd: str, *, objects: ObjectCache, run: Callable[[str, str], None]) -> None:
    """Write the output of a compiler's command, which has one source (``.cpp``) and ``-o``.

    Args:
        command: the command.
        cwd: the directory to run it in.
        objects: what earlier commands made.
        run: runs a command in a directory.
    """
    words = shlex.split(command)
    output = words.index("-o") + 1
    source = next(i for i, word in enumerate(words) if word.endswith(".cpp"))
    flags = [_FOLDER.sub("", word) for i, word in enumerate(words) if i not in (source, output)]
    options = {"flags": shlex.join(flags), **_surroundings(words[0])}
    text = Path(words[source]).read_bytes()
    found = objects.find_object(text, options)
    if found is None:
        run(command, cwd)
        objects.keep_object(text, options, Path(words[output]).read_bytes())
    else:
        Path(words[output]).write_bytes(found)


def compile_once(command: str, cwd: str, *, objects: ObjectCache, run: Callable[[str, str], None]) -> None:
    """As :func:`compile_object`, one after another: what all libraries have is compiled by the first that needs it."""
    with _one_at_a_time:
        compile_object(command, cwd, objects=objects, run=run)


def default_compiler() -> str:
    """``$CXX``, or g++."""
    return os.environ.get("CXX") or "g++"


def compiler_version(compiler: str = "") -> str:
    """The first line that the compiler says of itself; by default the default compiler."""
    return _version_of(compiler or default_compiler())


@functools.cache
def _version_of(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]


def _surroundings(compiler: str) -> dict[str, str]:
    """What an object depends on besides its source and flags."""
    environment = {name: os.environ.get(name, "") for name in ENVIRONMENT}
    return {"compiler": compiler_version(compiler), "torch": str(torch.__version__), "headers": _hash_of_headers(), **environment}


@functools.cache
def _hash_of_headers() -> str:
    """A hash of torch's headers for compiled code. A torch that is being developed keeps its version."""
    found = hashlib.sha256()
    for header in sorted(_HEADERS.rglob("*.h")):
        found.update(header.read_bytes())
    return found.hexdigest()

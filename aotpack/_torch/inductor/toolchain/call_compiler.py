"""Compiles the call library, whose sources are the loader's, against torch's headers.

All bundles of one torch and Python share the file.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

import aotpack_loader

CSRC = Path(aotpack_loader.__file__).parent / "csrc"
_SOURCE = CSRC / "call.cpp"
_TORCH = Path(torch.__file__).parent
_FLAGS = (
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wl,--strip-all",
    "-Wl,--build-id=none",
    "-Wl,-Bsymbolic-functions",
)


def call_library_source() -> bytes:
    """The sources of the library, one after the other."""
    return b"".join(path.name.encode() + b"\n" + path.read_bytes() for path in sorted(CSRC.iterdir()))


def call_library_fingerprint() -> dict[str, str]:
    """What the library depends on besides its source and the toolchain."""
    return {"flags": " ".join(_FLAGS), "python": EXTENSION_SUFFIXES[0]}


def compile_call_library(output: Path) -> None:
    """Compile the library to ``output``, for every processor of this architecture.

    Raises:
        OSError: there is no compiler.
        subprocess.CalledProcessError: the compiler fails; ``stderr`` has its messages.
    """
    command = [os.environ.get("CXX") or "g++", *_FLAGS]
    for include in (_TORCH / "include", _TORCH / "include/torch/csrc/api/include", Path(sysconfig.get_path("include"))):
        command += ["-isystem", os.fspath(include)]
    # The file contains no path of this machine: its bytes are the same everywhere.
    command += [f"-ffile-prefix-map={_TORCH / 'include'}=torch/include", f"-ffile-prefix-map={CSRC}=."]
    command += [os.fspath(_SOURCE), "-o", os.fspath(output), f"-L{_TORCH / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True, capture_output=True, text=True)

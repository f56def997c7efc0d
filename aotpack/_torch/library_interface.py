"""Compiles once what is the same in all of AOTInductor's libraries: the functions by which a library is called.

AOTInductor writes a copy of them into the wrapper of every graph. They are two thirds of the C++
compiler's work on a small wrapper.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Lock

import torch
from torch._inductor.codegen import cpp_wrapper_cpu

from aotpack_loader.archive.temporaries import temporary_file

_SOURCE = Path(cpp_wrapper_cpu.__file__).parent / "aoti_runtime" / "interface.cpp"
_HEADERS = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "inductor" / "aoti_runtime"
_NEEDED_BY_A_MODEL = "#include <torch/csrc/inductor/aoti_runtime/model.h>\n"
_FIRST = "#include <torch/csrc/inductor/aoti_include/cpu.h>\n"
_one_at_a_time = Lock()


def without_interface(wrapper: str) -> tuple[str, str]:
    """A wrapper without the interface, and the source of the interface alone.

    If torch writes another interface than the file that it comes with, the wrapper stays as it is,
    and the source is empty.
    """
    known = _SOURCE.read_text()
    first, *_, last = [line for line in known.splitlines() if line.strip()]
    start = wrapper.find(first)
    end = wrapper.find(f"\n{last}\n", start) + len(last) + 1
    interface = wrapper[start:end]
    if start < 0 or interface.split() != known.split():
        return wrapper, ""
    includes = "".join(f"{line}\n" for line in interface.splitlines() if line.startswith("#include <") and "/" not in line)
    return wrapper[:start] + _NEEDED_BY_A_MODEL + includes + wrapper[end:], _FIRST + interface


class Interface:
    """The object file of an interface for one set of compiler options, kept for other graphs and builds.

    Args:
        source: its source.
        command: the compiler's command for the wrapper of a graph.
        compiler: the compiler's version.
        folder: a private directory for object files.
    """

    def __init__(self, source: str, command: str, compiler: str, folder: Path) -> None:
        self._source, self._words = source, shlex.split(command)
        self._from = next(i for i, word in enumerate(self._words) if word.endswith(".wrapper.cpp"))
        self._to = self._words.index("-o") + 1
        flags = [word for i, word in enumerate(self._words) if i not in (self._from, self._to)]
        key = json.dumps([source, flags, compiler, str(torch.__version__), _hash_of_headers()])
        self.path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.interface.o"

    def compile(self, folder: Path, run: Callable[[str, str], None]) -> None:
        """Compile it by ``run`` in the empty directory ``folder``, unless that was done before."""
        with _one_at_a_time:
            if self.path.exists():
                return
            source, made = folder / "interface.cpp", folder / "interface.o"
            source.write_text(f'#line 1 "interface.cpp"\n{self._source}')
            words = [*self._words]
            words[self._from], words[self._to] = os.fspath(source), os.fspath(made)
            run(shlex.join(words), os.fspath(folder))
            with temporary_file(self.path.parent) as temporary:
                temporary.file.write(made.read_bytes())
                temporary.move_to(self.path)


@cache
def _hash_of_headers() -> str:
    found = hashlib.sha256()
    for header in sorted(_HEADERS.glob("*.h")):
        found.update(header.read_bytes())
    return found.hexdigest()

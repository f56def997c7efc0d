"""Compiles once what is the same in all of AOTInductor's libraries: the functions by which a library is called.

AOTInductor writes a copy of them into the wrapper of every graph. They are two thirds of the C++
compiler's work on a small wrapper. As a source of its own, they are found in the cache of objects.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from torch._inductor.codegen import cpp_wrapper_cpu

_SOURCE = Path(cpp_wrapper_cpu.__file__).parent / "aoti_runtime" / "interface.cpp"
_NEEDED_BY_A_MODEL = "#include <torch/csrc/inductor/aoti_runtime/model.h>\n"


def without_interface(wrapper: str, device: str = "cpu") -> tuple[str, str]:
    """A wrapper for a device without the interface, and the source of the interface alone.

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
    alone = f"#include <torch/csrc/inductor/aoti_include/{device}.h>\n{interface}"
    return wrapper[:start] + _NEEDED_BY_A_MODEL + includes + wrapper[end:], alone


def interface_command(wrapper_command: str, source: Path, output: Path) -> str:
    """The compiler's command for an interface, made from the command for a wrapper."""
    words = shlex.split(wrapper_command)
    replaced = next(i for i, word in enumerate(words) if word.endswith(".wrapper.cpp"))
    words[replaced], words[words.index("-o") + 1] = os.fspath(source), os.fspath(output)
    return shlex.join(words)

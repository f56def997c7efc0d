"""Finds out which instruction sets the C++ compiler accepts, for Inductor."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from torch._inductor import cpp_builder, cpu_vec_isa

from .api.patching import hooked
from .api.process_copy import ProcessCopyError, beside, copies_are_made

_Answers: TypeAlias = dict[tuple[tuple[str, ...], str], bool]
_accepted: Final[_Answers] = {}
"""Whether the compiler accepts a source, by the command and the source."""
_asked: Final[list[Callable[[], _Answers]]] = []
"""Functions that wait for the answers that a copy of this process collects."""


@contextlib.contextmanager
def quick_probes() -> Iterator[None]:
    """Detect instruction sets by asking the compiler whether it accepts their flags.

    For each of the processor's three to six sets, Inductor compiles a program with ATen's headers
    and loads it. That takes two seconds each, in every process without a cached result. It also
    shows whether torch's own compiler knew the set; for torch's wheels it did.
    """

    def takes_flags(isa: cpu_vec_isa.VecISA, code: str) -> bool:
        source = "" if code == cpu_vec_isa.VecISA._avx_code else code  # others are small, and need no header of torch
        command = (cpp_builder.get_cpp_compiler(), *shlex.split(isa.build_arch_flags()), "-x", "c++", "-fsyntax-only", "-")
        if (known := _accepted.get((command, source))) is not None:
            return known
        ran = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
        return _accepted.setdefault((command, source), ran.returncode == 0)

    with hooked("inductor-tool-chain", cpu_vec_isa.VecISA, "check_build", takes_flags):
        yield


def ask_compiler() -> None:
    """Start to ask the compiler which instruction sets it accepts, in a copy of this process.

    Every process that generates code needs the answers, which take seconds. So they are collected
    while the model is traced.
    """
    if _accepted or _asked or not copies_are_made():
        return

    def answers() -> _Answers:
        with quick_probes():
            cpu_vec_isa.valid_vec_isa_list()
        return _accepted

    _asked.append(beside(answers))


def take_answers() -> None:
    """Wait for the answers that :func:`ask_compiler` asked for."""
    while _asked:
        with contextlib.suppress(ProcessCopyError):  # Inductor asks again, and tells what is wrong with the compiler
            _accepted.update(_asked.pop()())

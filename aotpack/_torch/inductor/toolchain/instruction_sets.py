"""Chooses the instruction set that Inductor generates code for."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Iterator

import torch._inductor.config as inductor_config
from torch._inductor import cpp_builder, cpu_vec_isa

from ...api.patching import hooked


class _Avx512(cpu_vec_isa.VecAVX512):
    """The vectors of x86-64-v4, and no more."""

    def __bool__(self) -> bool:  # type: ignore[override]  # torch's is a cache
        return True


class _Avx2(cpu_vec_isa.VecAVX2):
    """The vectors of x86-64-v3, and no more."""

    def __bool__(self) -> bool:
        return True


@contextlib.contextmanager
def named_instruction_set() -> Iterator[None]:
    """Let Inductor generate code for the instruction set that is named (``cpp.march``), whatever this machine's processor has.

    Inductor takes the best set of this processor with vectors of that width. It may have AMX, VNNI or
    bfloat16, which no x86-64 level has, and code with these would end a process on another machine.
    To find the sets, Inductor also compiles and loads a program for each, which takes two seconds
    each. If no set is named, the compiler is asked only whether it accepts the flags of each.
    """
    sets_of_this_machine = cpu_vec_isa.valid_vec_isa_list

    def sets() -> list[cpu_vec_isa.VecISA]:
        return [_Avx512(), _Avx2()] if getattr(inductor_config.cpp, "march", None) else sets_of_this_machine()

    def takes_flags(isa: cpu_vec_isa.VecISA, code: str) -> bool:
        command = (cpp_builder.get_cpp_compiler(), *shlex.split(isa.build_arch_flags()), "-x", "c++", "-fsyntax-only", "-")
        return subprocess.run(command, input="", capture_output=True, text=True, check=False).returncode == 0

    with (
        hooked("inductor-tool-chain", cpu_vec_isa, "valid_vec_isa_list", sets),
        hooked("inductor-tool-chain", cpu_vec_isa.VecISA, "check_build", takes_flags),
    ):
        yield

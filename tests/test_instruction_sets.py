"""The instruction sets that code is generated for."""

from __future__ import annotations

import subprocess

import pytest
import torch._inductor.config as inductor_config
from torch._inductor import cpu_vec_isa

from aotpack._torch.inductor.lowering import x86_vector_bits
from aotpack._torch.inductor.toolchain.instruction_sets import named_instruction_set
from aotpack_loader.devices import cpuinfo

pytestmark = pytest.mark.skipif(cpuinfo.architecture() != "amd64", reason="the names are those of x86-64")


def flags_of(level: str) -> set[str]:
    """The compiler's flags that a level turns on."""
    out = subprocess.run(["g++", f"-march={level}", "-Q", "--help=target"], check=True, capture_output=True, text=True).stdout
    return {line.split()[0] for line in out.splitlines() if line.endswith("[enabled]")}


def chosen(level: str | None, bits: int | None) -> cpu_vec_isa.VecISA:
    with inductor_config.patch({"cpp.march": level, "cpp.simdlen": bits}), named_instruction_set():
        isa = cpu_vec_isa.pick_vec_isa()
        assert bool(isa) is (isa.bit_width() > 0)
        return isa


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_code_has_no_instruction_beyond_its_level(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any machine: neither this processor nor the compiler is asked."""
    expected = flags_of(level)
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: pytest.fail(f"ran {command}"))
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", lambda: pytest.fail("looked at this machine"))
    isa = chosen(level, x86_vector_bits(level))
    assert isa.bit_width() == x86_vector_bits(level)
    assert {*isa.build_arch_flags().split()} <= expected


def test_lower_levels_have_no_vectors_of_torch() -> None:
    assert not chosen("x86-64-v2", x86_vector_bits("x86-64-v2"))


def test_without_a_name_it_is_this_machines() -> None:
    assert chosen(None, None) in cpu_vec_isa.valid_vec_isa_list()

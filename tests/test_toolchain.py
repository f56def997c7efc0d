"""What builds spare the C++ compiler."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch._inductor.config as inductor_config
from torch._inductor import cpp_builder

from aotpack._torch import library_interface, toolchain
from aotpack._torch.fixes.inductor.checks import with_checks
from aotpack._torch.generated_sources import finished_wrapper
from aotpack._torch.library_interface import Interface, without_interface
from aotpack_loader.devices import cpuinfo

COPY = library_interface._SOURCE.read_text()
RUN = """
struct Sizes { long values[8]; };
void kernel(Sizes*);
struct AOTInductorModel { void run_impl(Sizes*, Sizes*); };
void AOTInductorModel::run_impl(Sizes* from, Sizes* to) {
  const Sizes copied = *from;
  *to = copied;
  kernel(to);
}
"""
WRAPPER = f"#include <torch/csrc/inductor/aoti_include/cpu.h>\n{COPY}\nint of_the_graph;\n"


def test_a_wrapper_without_its_interface() -> None:
    rest, source = without_interface(WRAPPER)
    assert "AOTInductorModelContainerRun" not in rest
    assert "aoti_runtime/model.h" in rest
    assert rest.endswith("int of_the_graph;\n")
    assert "AOTInductorModelContainerRun" in source
    assert "of_the_graph" not in source


def test_an_interface_that_torch_writes_otherwise_stays_in_the_wrapper() -> None:
    other = WRAPPER.replace("AOTInductorModelContainerRun", "AnotherRun")
    assert without_interface(other) == (other, "")
    assert without_interface("int of_the_graph;\n") == ("int of_the_graph;\n", "")


def test_an_interface_is_compiled_once_for_each_set_of_options(tmp_path: Path) -> None:
    ran: list[list[str]] = []

    def run(command: str, cwd: str) -> None:
        ran.append(shlex.split(command))
        Path(ran[-1][ran[-1].index("-o") + 1]).write_bytes(Path(ran[-1][1]).read_bytes())

    def compiled(graph: str, flag: str = "-O1", source: str = "int shared;", compiler: str = "g++ 13") -> Path:
        folder = tmp_path / f"{graph} {flag} {source} {compiler}"
        folder.mkdir()
        command = shlex.join(["g++", f"{folder}/{graph}.wrapper.cpp", flag, "-c", "-o", f"{folder}/{graph}.wrapper.o"])
        made = Interface(source, command, compiler, tmp_path)
        made.compile(folder, run)
        assert source in made.path.read_text()
        return made.path

    first = compiled("forward")
    assert compiled("backward") == first
    assert len(ran) == 1
    others = {compiled("forward", flag="-O2"), compiled("forward", source="int b;"), compiled("forward", compiler="g++ 14")}
    assert len(others | {first}) == len(ran) == 4


@pytest.mark.parametrize(("line", "needs"), [("aotpack_refuse(a, b);", True), ("AotpackEvent aotpack_event_0;", False)])
def test_the_header_of_checks_is_only_where_a_check_is(line: str, needs: bool) -> None:
    assert ("cpp_prefix.h" in with_checks(line)) is needs


def test_what_warns_about_a_missing_gpu_is_imported_before_copies_are_made() -> None:
    """A CUDA build of torch warns where there is none. Each copy of the process would do so."""
    code = "import sys, aotpack._torch.lowering; assert 'torch.utils.cpp_extension' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(cpuinfo.best_x86_level() is None, reason="needs an x86-64 processor")
@pytest.mark.parametrize("lines", [0, 1001])
def test_wrappers_clear_wide_registers_before_they_call(lines: int, tmp_path: Path) -> None:
    """GCC leaves that out at this level of optimization. Then SSE code, as libm's, is slow on Intel's processors."""
    source, made = tmp_path / "run.cpp", tmp_path / "run.o"
    source.write_text(finished_wrapper(RUN.replace("{\n  const", "{\n" + "\n" * lines + "  const"), 0, 1))
    level = {"aot_inductor.compile_wrapper_opt_level": toolchain.WRAPPER_LEVEL}
    with inductor_config.patch(level), toolchain._flags_of_ours(lambda: pytest.fail("nothing is compiled")):
        flags, _ = cpp_builder._get_optimization_cflags("g++", min_optimize=True)
    subprocess.run(["g++", *(f"-{flag}" for flag in flags), "-march=x86-64-v4", "-c", source, "-o", made], check=True)
    code = subprocess.run(["objdump", "-d", made], check=True, capture_output=True, text=True).stdout
    before, call, _ = code.partition("call ")
    assert call
    assert "%zmm" in before
    assert "vzeroupper" in before

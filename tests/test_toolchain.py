"""What builds spare the C++ compiler."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch._inductor.config as inductor_config
from torch._inductor import cpp_builder

from aotpack._torch.fixes.inductor.checks import with_checks
from aotpack._torch.inductor.toolchain import commands, library_interface
from aotpack._torch.inductor.toolchain.generated_sources import finished_wrapper
from aotpack._torch.inductor.toolchain.library_interface import interface_command, without_interface
from aotpack._torch.inductor.toolchain.objects import compile_object
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


class _Objects(dict[tuple[bytes, str], bytes]):
    """Objects in memory."""

    def find_object(self, source: bytes, options: Mapping[str, str]) -> bytes | None:
        return self.get((source, str(options)))

    def keep_object(self, source: bytes, options: Mapping[str, str], compiled: bytes) -> None:
        self[source, str(options)] = compiled


def test_an_object_is_found_by_its_source_the_compiler_and_the_flags(tmp_path: Path) -> None:
    """Folders are no part of that: each build has its own."""
    ran: list[str] = []
    objects = _Objects()

    def run(command: str, cwd: str) -> None:
        ran.append(command)
        words = shlex.split(command)
        Path(words[words.index("-o") + 1]).write_bytes(Path(words[1]).read_bytes())

    def compiled(name: str, source: str = "int a;", flag: str = "-O1", compiler: str = "g++") -> bytes:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.cpp").write_text(source)
        include = [f"-I{folder}", f"-ffile-prefix-map={folder}/include=torch/include"]
        command = [compiler, f"{folder}/{name}.cpp", *include, flag, "-c", "-o", f"{folder}/{name}.o"]
        compile_object(shlex.join(command), str(folder), objects=objects, run=run)
        return (folder / f"{name}.o").read_bytes()

    assert compiled("first") == compiled("first") == b"int a;"
    assert len(ran) == 1
    assert compiled("second", source="int b;") == b"int b;"
    compiled("third", flag="-O2")
    compiled("fourth", compiler="cc")
    assert len(ran) == 4
    objects.clear()
    compiled("first")
    assert len(ran) == 5


def test_an_interface_is_compiled_as_its_wrapper_is() -> None:
    command = "g++ /a/x.wrapper.cpp -O1 -I/b -c -o /a/x.wrapper.o"
    assert interface_command(command, Path("/c/i.cpp"), Path("/c/i.o")) == "g++ /c/i.cpp -O1 -I/b -c -o /c/i.o"


@pytest.mark.parametrize(("line", "needs"), [("aotpack_refuse(a, b);", True), ("AotpackEvent aotpack_event_0;", False)])
def test_the_header_of_checks_is_only_where_a_check_is(line: str, needs: bool) -> None:
    assert ("cpp_prefix.h" in with_checks(line)) is needs


def test_what_warns_about_a_missing_gpu_is_imported_before_copies_are_made() -> None:
    """A CUDA build of torch warns where there is none. Each copy of the process would do so."""
    code = "import sys, aotpack._torch.inductor.lowering; assert 'torch.utils.cpp_extension' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(cpuinfo.best_x86_level() is None, reason="needs an x86-64 processor")
@pytest.mark.parametrize("lines", [0, 1001])
def test_wrappers_clear_wide_registers_before_they_call(lines: int, tmp_path: Path) -> None:
    """GCC leaves that out at this level of optimization. Then SSE code, as libm's, is slow on Intel's processors."""
    source, made = tmp_path / "run.cpp", tmp_path / "run.o"
    source.write_text(finished_wrapper(RUN.replace("{\n  const", "{\n" + "\n" * lines + "  const"), 0, 1))
    level = {"aot_inductor.compile_wrapper_opt_level": commands.WRAPPER_LEVEL}
    with inductor_config.patch(level), commands._flags_of_ours(lambda: pytest.fail("nothing is compiled")):
        flags, _ = cpp_builder._get_optimization_cflags("g++", min_optimize=True)
    subprocess.run(["g++", *(f"-{flag}" for flag in flags), "-march=x86-64-v4", "-c", source, "-o", made], check=True)
    code = subprocess.run(["objdump", "-d", made], check=True, capture_output=True, text=True).stdout
    before, call, _ = code.partition("call ")
    assert call
    assert "%zmm" in before
    assert "vzeroupper" in before

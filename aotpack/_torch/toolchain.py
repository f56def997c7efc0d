"""The tool chain below Inductor: what its C++ compiler is told, and that the commands of several graphs run side by side."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._inductor.config as inductor_config
from torch._inductor import codecache, cpp_builder, cpu_vec_isa
from torch._inductor.codegen import cpp_wrapper_cpu

from aotpack_loader.archive.cache import private_directory

from .fixes.inductor.checks import telling_failures, with_checks


def inductor_fingerprint() -> dict[str, str]:
    """What a compiled graph depends on besides the graph: the tool chain's versions and options that are not the target's."""
    compiler = os.environ.get("CXX") or "g++"
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
    found = {
        "torch": str(torch.__version__),
        "compiler": version,
        "linker": "noexecstack",
        "max_autotune": str(inductor_config.max_autotune),
    }
    return found | ({"deterministic": "True"} if torch.are_deterministic_algorithms_enabled() else {})


class Library:
    """A shared library that AOTInductor has written the sources of: the compiler's commands, to be run beside those of others.

    AOTInductor runs them one after the other and waits for each; most of a build is spent in them. ``guards`` are the conditions
    on sizes that AOTInductor added to those of the trace.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.guards: list[Any] = []
        self._objects: list[str] = []
        self._link = ""
        self._running: list[Future[None]] = []

    def take(self, command: str, cwd: str) -> None:
        """Stands in for Inductor's ``run_compile_cmd``: keeps the commands of this library, runs others (headers)."""
        words = shlex.split(command)
        target = Path(words[words.index("-o") + 1])
        if target == self.output:
            self._link = command
            for word in words:  # AOTInductor removes objects once they are linked; those that are there now are needed then
                if word.endswith(".o") and os.path.getsize(word):
                    kept = f"{word}.kept.o"
                    os.link(word, kept)
                    self._link = self._link.replace(word, kept)
        elif any(word.endswith((".wrapper.cpp", ".kernel.cpp")) for word in words):
            self._objects.append(command)
            target.touch()
        else:
            _run_compiler(command, cwd)

    def start(self, workers: Executor) -> None:
        """Compile the objects."""
        self._running = [workers.submit(_run_compiler, command, os.fspath(self.output.parent)) for command in self._objects]

    def finish(self) -> None:
        """Wait for the objects, link them to ``output``, strip debug sections."""
        for running in self._running:
            running.result()
        _run_compiler(self._link, os.fspath(self.output.parent))
        # The build id is made of what has just been stripped: it knows where the sources lay.
        strip = ["strip", "--strip-unneeded", "--remove-section=.note.gnu.build-id", os.fspath(self.output)]
        subprocess.run(strip, check=True, capture_output=True)


_run_compiler = cpp_builder.run_compile_cmd


def imports_from_torch(library: Path) -> list[str]:
    """The names that compiled code takes from torch's libraries: those without a version, which all system libraries give."""
    listed = subprocess.run(["nm", "-D", "--undefined-only", os.fspath(library)], check=True, capture_output=True, text=True)
    found = [line.split() for line in listed.stdout.splitlines()]
    return sorted(name for kind, name in found if kind == "U" and "@" not in name)


@contextlib.contextmanager
def tool_chain(library: Library) -> Iterator[None]:
    """Have Inductor write sources and commands as bundles need them, and leave those of ``library`` to be run later."""
    with (
        _outside_ci(),
        _flags_of_ours(),
        _without_checks(),
        _quick_probes(),
        mock.patch.object(cpp_builder, "run_compile_cmd", library.take),
    ):
        yield


@contextlib.contextmanager
def _outside_ci() -> Iterator[None]:
    """Inductor refuses where CI is set what it only warns of elsewhere: a build is the same everywhere."""
    with mock.patch.dict(os.environ):
        os.environ.pop("CI", None)
        yield


@contextlib.contextmanager
def _flags_of_ours() -> Iterator[None]:
    """Keep this machine's paths out of compiled code (``__FILE__`` in messages), so that it is the same bytes everywhere.

    And link it so that it asks for no executable stack, as AOTInductor's object of constants does by omission: loading it would
    make every stack of the process executable, and from glibc 2.41 on it is refused.
    """
    flags, compiler = cpp_builder._get_optimization_cflags, codecache.AotCodeCompiler
    include = Path(torch.__file__).parent / "include"

    def mapped(*args: Any, **kwargs: Any) -> tuple[list[str], list[str]]:
        compiling, linking = flags(*args, **kwargs)
        plain = [flag for flag in compiling if flag != "g1"]  # debug sections are stripped: they would only cost time
        own = _own_headers(include)
        first = [] if own is None else [f"I{own}", f"ffile-prefix-map={own}=torch/include"]
        return [*first, *plain, f"ffile-prefix-map={include}=torch/include"], [*linking, "Wl,-z,noexecstack"]

    class Renamed(compiler):  # type: ignore[misc,valid-type]
        @classmethod
        def compile(cls, graph: Any, wrapper_code: str, kernel_code: str, *args: Any, **kwargs: Any) -> Any:
            wrapper_code = f'#line 1 "wrapper.cpp"\n{telling_failures(with_checks(wrapper_code))}'
            kernel_code = f'#line 1 "kernel.cpp"\n{with_checks(kernel_code)}' if kernel_code else kernel_code
            return super().compile(graph, wrapper_code, kernel_code, *args, **kwargs)

    with (
        mock.patch.object(cpp_builder, "_get_optimization_cflags", mapped),
        mock.patch.object(codecache, "AotCodeCompiler", Renamed),
    ):
        yield


_MODEL_BASE = Path("torch", "csrc", "inductor", "aoti_runtime", "model_base.h")
_WITHOUT_REGEX = {
    "#include <regex>": "#include <functional>",
    """\
  std::regex re("(cpu|cuda|xpu|mps)(:([0-9]+))?");
  std::smatch sm;
  bool matched = std::regex_match(device_str, sm, re);
  AOTI_RUNTIME_CHECK(matched, "Invalid device: " + device_str);
""": """\
  const auto colon = device_str.find(':');
  const std::string device = device_str.substr(0, colon);
""",
    "sm[1].str()": "device",
    "sm[3].matched": "colon != std::string::npos",
    "sm[3].str()": "device_str.substr(colon + 1)",
}


def _own_headers(include: Path) -> Path | None:
    """A folder with those of torch's headers that compiled code is better without, or null where torch's are others.

    AOTInductor's code reads the name of its device with a regular expression. That is half of what the C++ compiler works on and
    half of a small library, and done anew whenever one is opened. The folder is beside torch's precompiled headers, which are
    made anew for every path.
    """
    text = (include / _MODEL_BASE).read_text()
    if not all(part in text for part in _WITHOUT_REGEX):
        return None
    for old, new in _WITHOUT_REGEX.items():
        text = text.replace(old, new)
    root = private_directory(Path(codecache._HEADER_DIR).with_name("aotpack_headers"), "TMPDIR")
    folder = root / hashlib.sha256(text.encode()).hexdigest()[:16]
    header = folder / _MODEL_BASE
    if not header.exists() or header.read_text() != text:
        header.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=header.parent, delete=False) as file:
            file.write(text)
        Path(file.name).replace(header)
    return folder


@contextlib.contextmanager
def _without_checks() -> Iterator[None]:
    """Leave out AOTInductor's own checks of every input's type, sizes and strides.

    They run only if AOTI_RUNTIME_CHECK_INPUTS is set; the loader checks arguments itself, and all that a graph is given under
    ``check="full"``. They are most of the wrapper's source: a fifth of the C++ compiler's time and of the code with 23 inputs,
    more with more.
    """

    def none(wrapper: cpp_wrapper_cpu.CppWrapperCpu) -> None:
        wrapper.prefix.splice_aot("static void __check_inputs_outputs(AtenTensorHandle*, AtenTensorHandle*) {}")
        # From torch 2.14 on, other checks ask this too whether they are wanted.
        wrapper.prefix.splice_aot("[[maybe_unused]] static bool _check_aoti_runtime_check_inputs_env() { return false; }")

    with mock.patch.object(cpp_wrapper_cpu.CppWrapperCpu, "generate_input_output_runtime_checks", none):
        yield


@contextlib.contextmanager
def _quick_probes() -> Iterator[None]:
    """Find out which instruction sets there are by asking the compiler whether it takes their flags.

    Inductor compiles a program with ATen's headers for each that the processor has, three to six, and loads it: two seconds each,
    in every process that finds none in its cache. They tell whether torch was built with a compiler that knew the set, too; its
    wheels are.
    """

    def takes_flags(isa: cpu_vec_isa.VecISA, code: str) -> bool:
        source = "" if code == cpu_vec_isa.VecISA._avx_code else code  # others are small, and need no header of torch's
        command = [cpp_builder.get_cpp_compiler(), *shlex.split(isa.build_arch_flags()), "-x", "c++", "-fsyntax-only", "-"]
        return subprocess.run(command, input=source, capture_output=True, text=True, check=False).returncode == 0

    with mock.patch.object(cpu_vec_isa.VecISA, "check_build", takes_flags):
        yield

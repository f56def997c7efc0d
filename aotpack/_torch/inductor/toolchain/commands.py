"""Controls the C++ compiler and linker below Inductor, and runs the commands of several graphs in
parallel.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch._inductor.config as inductor_config
import torch.utils.cpp_extension  # before this process is copied: each copy would import it, and repeat its warning
from torch._inductor import codecache, cpp_builder
from torch._inductor.codegen import cpp_wrapper_cpu
from torch.fx import Node

from aotpack_loader.archive.cache import private_directory, read_private
from aotpack_loader.archive.temporaries import temporary_directory, temporary_file
from aotpack_loader.errors import AotpackError, BuildError

from ...api.counting import counted
from ...api.patching import constant, hooked
from ...api.process_copy import ProcessCopy
from ...fixes.inductor.checks import with_kernel_errors
from ..layouts import OutputLayout
from . import CSRC
from .directories import private_directories, variable
from .generated_sources import CLEARED_REGISTERS, finished_wrapper, with_functions
from .hoisted_numbers import with_hoisted_numbers
from .instruction_sets import named_instruction_set
from .library_interface import interface_command, without_interface
from .objects import ObjectCache, compile_object, compile_once, compiler_version, default_compiler
from .preprocessed_headers import preprocess
from .stub_library import linked_to_stub

WRAPPER_LEVEL: Final = "Og"
"""How wrappers are optimized. It takes half as long as O1 for the calls of kernels."""


def inductor_fingerprint() -> dict[str, str]:
    """What compiled code depends on besides the graph and the target's options: versions and
    options of the toolchain.
    """
    found = {
        "torch": str(torch.__version__),
        "compiler": compiler_version(),
        "linker": "noexecstack, exports.map, stub of torch_cpu",
        "max_autotune": str(inductor_config.max_autotune),
    }
    return found | ({"deterministic": "True"} if torch.are_deterministic_algorithms_enabled() else {})


def check_compiler() -> None:
    """Make a small library, so that a missing compiler, header or linker shows before a build begins.

    Raises:
        BuildError: it cannot be made.
    """
    compiler = default_compiler()
    with temporary_directory(Path(tempfile.gettempdir())) as folder:
        (folder / "a.cpp").write_text("#include <vector>\nstd::vector<int> a(1);\n")
        command = [compiler, "-shared", "-fPIC", "a.cpp", "-o", "a.so"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
        except OSError as error:
            reason = f"{compiler} is not there" if isinstance(error, FileNotFoundError) else f"{compiler}: {error.strerror}"
        except subprocess.CalledProcessError as error:
            reason = f"{compiler} fails: {next(iter(error.stderr.strip().splitlines()), error)}"
        else:
            return
    raise BuildError(
        f"The cpu target needs a C++ compiler, and {reason}.",
        hint="Install the package g++ (Debian, Ubuntu) or gcc-c++ (Fedora), or set CXX to a compiler. "
        'targets=("portable",) needs none.',
    )


class LoweringError(Exception):
    """Inductor failed; ``nodes`` are the nodes it was processing."""

    def __init__(self, message: str, nodes: Sequence[Node]) -> None:
        super().__init__(message)
        self.nodes = nodes


class Library:
    """A shared library whose sources AOTInductor writes; its compiler commands run in parallel with those of others.

    AOTInductor runs them one after another and waits for each; they are most of a build's time.
    ``guards`` are the conditions on sizes that AOTInductor added to those of the trace. ``layouts``
    say how the code writes each output of the graph.
    ``products``: as :class:`aotpack._torch.inductor.lowering.Code` has it. ``runs``: how often a step runs the code.
    ``interface`` is the source of the functions that all libraries have. ``copy`` is the process that
    writes the sources; null if this process has written them. ``nodes`` are the graph's by name, for
    messages about what that process does.
    """

    device = "cpu"

    def __init__(self, output: Path, products: int = 0, runs: int = 1) -> None:
        self.output, self.products, self.runs = output, products, runs
        self.guards: list[Any] = []
        self.layouts: Sequence[OutputLayout] = ()
        self.interface = ""
        self.copy: ProcessCopy | None = None
        self.nodes: Mapping[str, Node] = {}
        self._objects: list[str] = []
        self._link = ""
        self._made: Future[None] | None = None

    def finished(self, wrapper: str) -> str:
        """The source of a wrapper as it is compiled."""
        return finished_wrapper(wrapper, self.products, self.runs)

    def linked(self, link: str) -> str:
        """The linker's command as it runs."""
        return linked_to_stub(link, folder_of_headers())

    def take(self, command: str, cwd: str) -> None:
        """Replaces Inductor's ``run_compile_cmd``: records the commands of this library, and runs
        others (headers).
        """
        words = shlex.split(command)
        target = Path(words[words.index("-o") + 1])
        if target == self.output:
            self._link = command
            for word in words:  # AOTInductor removes objects after linking; objects that exist now are still needed
                if word.endswith(".o") and os.path.getsize(word):
                    kept = f"{word}.kept.o"
                    os.link(word, kept)
                    self._link = self._link.replace(word, kept)
        elif any(word.endswith((".wrapper.cpp", ".kernel.cpp")) for word in words):
            self._objects.append(command)
            target.touch()
        elif "-E" in words:
            preprocess(command, cwd, compiler=compiler_version(), folder=folder_of_headers(), run=_run_compiler)
        else:
            _run_compiler(command, cwd)

    def start(self, workers: Executor, chains: Executor, objects: ObjectCache, shared: ObjectCache) -> None:
        """Start compiling. ``workers`` run compilers, and ``chains`` wait for them.

        ``objects`` are those of earlier builds. ``shared`` has the interface of all libraries.
        """
        self._made = chains.submit(self._make, workers, objects, shared)

    def finish(self) -> None:
        """Wait for the library."""
        assert self._made is not None
        self._made.result()

    def abandon(self) -> None:
        """End the process that writes the sources: they are not needed."""
        assert self.copy is not None
        self.copy.end()

    def _make(self, workers: Executor, objects: ObjectCache, shared: ObjectCache) -> None:
        """Compile the objects, link them to ``output``, strip debug sections."""
        if self.copy is not None:
            self._receive(self.copy.result())
            self.nodes = {}
        folder = os.fspath(self.output.parent)
        running = [
            workers.submit(compile_object, command, folder, objects=objects, run=_run_compiler) for command in self._objects
        ]
        link = self._link
        wrapper = next((command for command in self._objects if ".wrapper.cpp" in command), None)
        if self.interface and wrapper is not None:
            source, compiled = self.output.with_name("interface.cpp"), self.output.with_name("interface.o")
            source.write_text(f'#line 1 "interface.cpp"\n{self.interface}')
            command = interface_command(wrapper, source, compiled)
            running.append(workers.submit(compile_once, command, folder, objects=shared, run=_run_compiler))
            made = shlex.split(wrapper)[shlex.split(wrapper).index("-o") + 1]
            link = link.replace(made, f"{made} {shlex.quote(os.fspath(compiled))}")
        for each in running:
            each.result()
        workers.submit(_run_compiler, self.linked(link), folder).result()
        # The build id is a hash over the stripped sections, and so depends on the folder of the
        # sources.
        strip = ["strip", "--strip-unneeded", "--remove-section=.note.gnu.build-id", os.fspath(self.output)]
        subprocess.run(strip, check=True, capture_output=True)

    def sources(self) -> Sources:
        """What this process has written, for the process that it is a copy of."""
        return Sources(self.output, self._objects, self._link, self.interface, self.guards, self.layouts)

    def _receive(self, sources: Sources | Failure | AotpackError) -> None:
        """Take what a copy of this process has sent."""
        if isinstance(sources, AotpackError):
            raise sources
        if isinstance(sources, Failure):
            raise LoweringError(sources.message, [self.nodes[name] for name in sources.nodes if name in self.nodes])
        self.output, self._objects, self._link = sources.output, sources.objects, sources.link
        self.interface, self.layouts = sources.interface, sources.layouts
        self.guards += sources.guards


class Sources(NamedTuple):
    """What a copy of this process sends when it has written the sources of a library."""

    output: Path
    objects: list[str]
    link: str
    interface: str
    guards: list[Any]
    layouts: Sequence[OutputLayout]


class Failure(NamedTuple):
    """What a copy of this process sends when Inductor failed: the message, and names of nodes."""

    message: str
    nodes: list[str]


def send_sources(library: Library) -> None:
    """In a copy of this process: send what it has written, and end."""
    if library.copy is not None and library.copy.is_copy:
        library.copy.send(library.sources())


def send_failure(library: Library, error: BaseException) -> None:
    """In a copy of this process: send why it failed, and end."""
    if library.copy is not None and library.copy.is_copy:
        nodes = error.nodes if isinstance(error, LoweringError) else []
        library.copy.send(error if isinstance(error, AotpackError) else Failure(str(error), [node.name for node in nodes]))


_run_compiler = cpp_builder.run_compile_cmd


def imports_from_torch(library: Path) -> list[str]:
    """The names that compiled code imports from torch's libraries: those without a version.

    System libraries' have one.
    """
    listed = subprocess.run(["nm", "-D", "--undefined-only", os.fspath(library)], check=True, capture_output=True, text=True)
    found = [line.split() for line in listed.stdout.splitlines()]
    return sorted(name for kind, name in found if kind == "U" and "@" not in name)


@contextlib.contextmanager
def tool_chain(current: Callable[[], Library]) -> Iterator[None]:
    """Make Inductor write sources and commands in the form that bundles need, and defer the
    commands of the current library.
    """

    def take(command: str, cwd: str) -> None:
        current().take(command, cwd)

    with (
        _outside_ci(),
        private_directories(),
        _flags_of_ours(current),
        _without_checks(),
        named_instruction_set(),
        hooked("inductor-tool-chain", cpp_builder, "run_compile_cmd", counted("inductor-tool-chain", take)),
    ):
        yield


@contextlib.contextmanager
def _outside_ci() -> Iterator[None]:
    """Hide the variable CI: with it Inductor raises errors where it otherwise warns, and builds
    must not differ.
    """
    with variable("CI", None):
        yield


@contextlib.contextmanager
def _flags_of_ours(current: Callable[[], Library]) -> Iterator[None]:
    """Keep this machine's paths out of compiled code (``__FILE__`` in messages), so that its bytes
    are the same everywhere.

    Also link it without an executable stack; AOTInductor's constants object requests one by
    omission. Loading such a library makes every stack of the process executable, and glibc 2.41 and
    later refuse to load it. Export only the functions by which a library is called. That makes it a third
    smaller, and opening it does not look up its own functions in all libraries of the process.
    """
    flags, compiler = cpp_builder._get_optimization_cflags, codecache.AotCodeCompiler
    include = Path(torch.__file__).parent / "include"
    exports = CSRC / "exports.map"

    def mapped(*args: Any, **kwargs: Any) -> tuple[list[str], list[str]]:
        compiling, linking = flags(*args, **kwargs)
        plain = [flag for flag in compiling if flag != "g1"]  # debug sections are stripped, so generating them wastes time
        if WRAPPER_LEVEL in plain:
            plain.append(f"f{CLEARED_REGISTERS}")
        own = _own_headers(include)
        first = [] if own is None else [f"I{own}", f"ffile-prefix-map={own}=torch/include"]
        return [*first, *plain, f"ffile-prefix-map={include}=torch/include"], [
            *linking,
            "Wl,-z,noexecstack",
            f"Wl,--version-script={exports}",
        ]

    class Renamed(compiler):  # type: ignore[misc,valid-type]
        @classmethod
        def compile(cls, graph: Any, wrapper_code: str, kernel_code: str, *args: Any, **kwargs: Any) -> Any:
            wrapper_code, interface = without_interface(wrapper_code, current().device)
            current().interface = interface and with_kernel_errors(interface)
            wrapper_code = f'#line 1 "wrapper.cpp"\n{current().finished(wrapper_code)}'
            kernels = with_functions(with_hoisted_numbers(kernel_code))
            kernel_code = f'#line 1 "kernel.cpp"\n{kernels}' if kernel_code else kernel_code
            return super().compile(graph, wrapper_code, kernel_code, *args, **kwargs)

    with (
        hooked("inductor-tool-chain", cpp_builder, "_get_optimization_cflags", mapped),
        constant("inductor-tool-chain", codecache, "AotCodeCompiler", Renamed),
    ):
        yield


_RUNTIME = Path("torch", "csrc", "inductor", "aoti_runtime")
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
_WITHOUT_HALVES = {f"#include <cuda_{name}.h>\n": "" for name in ("bf16", "fp16", "fp8")}
_OWN = {_RUNTIME / "model_base.h": _WITHOUT_REGEX, _RUNTIME / "utils_cuda.h": _WITHOUT_HALVES}


def _own_headers(include: Path) -> Path | None:
    """A folder with modified copies of torch's headers for compiled code, or null if torch's
    headers differ from the known ones.

    AOTInductor's code parses the name of its device with a regular expression. That is half of the
    C++ compiler's work and half of a small library, and it runs whenever a library is opened. Code for
    GPUs includes types of CUDA that it does not use, and which need another package of NVIDIA's. The
    folder is next to torch's precompiled headers, which are rebuilt for every path.
    """
    texts: dict[Path, str] = {}
    for path, changes in _OWN.items():
        text = (include / path).read_text()
        if not all(part in text for part in changes):
            return None
        for old, new in changes.items():
            text = text.replace(old, new)
        texts[path] = text
    folder = folder_of_headers() / hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:16]
    for path, text in texts.items():
        header = folder / path
        private_directory(header.parent, "AOTPACK_CACHE")
        if read_private(header) != text.encode():
            with temporary_file(header.parent, 0o600) as temporary:
                temporary.file.write(text.encode())
                temporary.move_to(header)
    return folder


def folder_of_headers() -> Path:
    return private_directory(Path(codecache._HEADER_DIR).with_name("aotpack_headers"), "AOTPACK_CACHE")


@contextlib.contextmanager
def _without_checks() -> Iterator[None]:
    """Leave out AOTInductor's own checks of every input's dtype, sizes and strides.

    They run only if AOTI_RUNTIME_CHECK_INPUTS is set. The loader checks arguments itself, and all
    inputs of a graph under ``check="full"``. The checks are most of the wrapper's source. With 23
    inputs they take a fifth of the C++ compiler's time and of the code, and more with more inputs.
    """

    def none(wrapper: cpp_wrapper_cpu.CppWrapperCpu) -> None:
        wrapper.prefix.splice_aot("static void __check_inputs_outputs(AtenTensorHandle*, AtenTensorHandle*) {}")
        # From torch 2.14 on, other checks call this function too.
        wrapper.prefix.splice_aot("[[maybe_unused]] static bool _check_aoti_runtime_check_inputs_env() { return false; }")

    with hooked("inductor-tool-chain", cpp_wrapper_cpu.CppWrapperCpu, "generate_input_output_runtime_checks", none):
        yield

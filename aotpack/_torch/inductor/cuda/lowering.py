"""Lowers graphs to libraries and kernels for GPUs."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor import codecache
from torch._inductor.graph import GraphLowering
from torch.utils._ordered_set import OrderedSet

from aotpack_loader.archive.cache import is_private, private_directory
from aotpack_loader.archive.temporaries import temporary_directory

from ...api.patching import hooked
from ...fixes.applying import apply_fixes
from ...fixes.inductor.checks import with_kernel_errors
from ..codegen.negative_indices import refuse_negative_rows
from ..codegen.rewrites import rewritten
from ..lowering import Code, GraphToLower, Lowering, WatchedGraph
from ..toolchain.commands import Library, folder_of_headers
from .kernels import Kernel, defines, kernels_compiled
from .retarget import retargeted
from .without_device import without_device

_NEEDED = ("torch_cuda", "cuda")
"""Libraries that code asks for by name. Those of CUDA's runtime come with torch's, whatever their release."""


class _CudaLibrary(Library):
    device = "cuda"

    def __init__(self, output: Path) -> None:
        super().__init__(output)
        self.kernels: list[Kernel] = []
        self.architecture = ""

    def finished(self, wrapper: str) -> str:
        return defines(self.kernels, self.architecture) + with_kernel_errors(wrapper)

    def linked(self, link: str) -> str:
        dropped = {f"-l{name}" for name in (*_NEEDED, "c10_cuda", "cudart")}
        words = [word for word in shlex.split(link) if word not in dropped]
        stubs = [str(_stub(name, words[0])) for name in _NEEDED]
        return super().linked(shlex.join([*words, "-Wl,--no-as-needed", *stubs]))

    def like(self, architecture: str) -> _CudaLibrary:
        """The same library for an architecture on which its kernels take other amounts of shared memory."""
        folder = self.output.parent.with_name(f"{self.output.parent.name}-{architecture}")
        shutil.copytree(self.output.parent, folder, symlinks=True)
        other = _CudaLibrary(folder / self.output.name)
        moved = (str(self.output.parent) + "/", str(folder) + "/")
        other._objects, other._link = [each.replace(*moved) for each in self._objects], self._link.replace(*moved)
        other.kernels, other.architecture = self.kernels, architecture
        other.interface, other.guards, other.layouts = self.interface, self.guards, self.layouts
        old, new = (defines(self.kernels, each) for each in (self.architecture, architecture))
        for wrapper in folder.glob("*.wrapper.cpp"):
            wrapper.write_text(wrapper.read_text().replace(old, new, 1))
        return other


class CudaCode:
    """What a graph becomes: a library for each architecture, which may be the same, and kernels."""

    def __init__(self, libraries: Mapping[str, Library], kernels: Sequence[Kernel]) -> None:
        self.libraries, self.kernels = libraries, kernels


def lower_for_cuda(
    graph: GraphToLower, folder: Path, architectures: Sequence[str], march: str | None, rules: Mapping[Any, Any]
) -> CudaCode:
    """Lower a graph that was traced on the CPU. ``rules``: further decompositions, by operator.

    Raises:
        LoweringError: Inductor has no code for some operator.
    """
    lowering = _CudaLowering(graph, Code(folder / "code.so", march, 1 if march else None), architectures, rules)
    lowering.run()
    first = lowering.library
    libraries: dict[str, Library] = {}
    known: dict[str, Library] = {defines(first.kernels, first.architecture): first}
    for architecture in architectures:
        shared = defines(first.kernels, architecture)
        if shared not in known:
            known[shared] = first.like(architecture)
        libraries[architecture] = known[shared]
    return CudaCode(libraries, first.kernels)


class _CudaGraph(WatchedGraph):
    def find_nodes_prefer_channels_last(self) -> OrderedSet[torch.fx.Node]:
        return GraphLowering.find_nodes_prefer_channels_last(self)


class _CudaLowering(Lowering):
    graph_class = _CudaGraph

    def __init__(self, graph: GraphToLower, code: Code, architectures: Sequence[str], rules: Mapping[Any, Any]) -> None:
        super().__init__(graph, [code], ())
        self.library = _CudaLibrary(code.output)
        self.library.architecture = architectures[0]
        self.here = self.library
        self.libraries = [self.here]
        self._architectures, self.rules = architectures, rules

    def _options(self) -> dict[str, Any]:
        return {
            **super()._options(),
            "triton.autotune_at_compile_time": True,  # kernels are compiled before the wrapper is written
            "triton.autotune_pointwise": False,
            "triton.store_cubin": True,
            "aot_inductor.embed_kernel_binary": False,
            "compile_threads": 1,
            "use_static_triton_launcher": False,
            "shape_padding": False,  # it would run what it measures
            "max_autotune": False,
            "max_autotune_gemm": False,
        }

    @contextlib.contextmanager
    def _changes(self) -> Iterator[None]:
        with (
            without_device(),
            kernels_compiled(self._architectures, self.library.kernels),
            apply_fixes("inductor", besides="torch._inductor.codegen.cp", module=self.graph.module, saved=self.graph.free),
            refuse_negative_rows(),
            hooked("inductor-cuda-without-device", codecache, "get_device_information", lambda device: {}),
        ):
            yield

    def _compile_inner(self, module: torch.fx.GraphModule, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Move the graph that Inductor made of ours. Until then it is on the CPU, where torch without CUDA has all operators."""
        retargeted(module)
        moved = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
        return super()._compile_inner(module, moved, *args, **kwargs)

    def _rewrite(self, module: torch.fx.GraphModule) -> None:
        rewritten(module)

    def go_on_in_copies(self, nodes: dict[str, torch.fx.Node]) -> None:
        """Go on in this process, to which kernels are handed."""


def _stub(name: str, compiler: str) -> Path:
    """An empty library with the name of one that is not on this machine."""
    soname = "libcuda.so.1" if name == "cuda" else f"lib{name}.so"
    folder = folder_of_headers()
    made = private_directory(folder / "stub-cuda", "AOTPACK_CACHE") / soname
    if not is_private(made):
        with temporary_directory(folder) as temporary:
            source = temporary / "empty.c"
            source.write_text("")
            flags = ["-shared", "-nostdlib", f"-Wl,-soname,{soname},-z,noexecstack", "-o", str(temporary / soname)]
            subprocess.run([compiler, *flags, str(source)], check=True, capture_output=True)
            (temporary / soname).chmod(0o700)
            (temporary / soname).replace(made)
    return made

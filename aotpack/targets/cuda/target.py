"""The CUDA target compiles graphs for NVIDIA's GPUs, on machines that need not have one."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from msgspec import structs

from aotpack_loader.archive.temporaries import temporary_directory
from aotpack_loader.devices import cpuinfo
from aotpack_loader.errors import BuildError
from aotpack_loader.format import media_types, schema

from ..._torch.api import messages
from ..._torch.fixes import applying
from ..._torch.inductor.cuda import chips, kernels, toolkit
from ..._torch.inductor.cuda.lowering import lower_for_cuda
from ..._torch.inductor.toolchain import commands
from ...graph.restore import symbols_of, to_fx
from ...writer.bundle import BlobStore, TargetEntry
from ...writer.cache import CompileCache, revision_of
from ..aoti.conversion import ConvertedGraph, convert_graph
from ..aoti.native import Files, Made, NativeTarget, files_of, refusing
from ..aoti.parts import in_parts
from ..aoti.workers import Workers
from ..base import Capabilities, GraphToCompile
from ..numbers import numbers_as_tensors
from .rules import ATTENTION, refuse_unsupported

_SOURCES = (Path(kernels.__file__).parent.parent.parent, Path(__file__).parent.parent)
_LEVEL: Final = "x86-64-v2"
"""The processors that host code runs on, where they are x86: it only allocates memory and launches kernels."""
_ELEMENTS: Final = 1 << 20
"""The size of a parameter for which blocks of a step are chosen."""
DEFAULT: Final = ("sm80", "sm90")
"""What ``cuda`` alone stands for."""

_HINT: Final = 'Build with targets=("portable",): such a bundle runs on a GPU, too, without native code.'


class _StoredKernel(msgspec.Struct):
    """A kernel in the compile cache."""

    document: dict[str, Any]
    cubin: bytes
    ptx: bytes


class CudaTarget(NativeTarget):
    """Kernels for one architecture (``cuda:sm90``), and the host code that launches them."""

    capabilities = Capabilities(uses_inductor=True)
    checks = (toolkit.nvidia_folder, *NativeTarget.checks)

    def __init__(self, variant: str = "") -> None:
        if variant not in chips.CHIPS:
            known = ", ".join(f"cuda:{name}" for name in chips.CHIPS)
            raise BuildError(f"There is no target 'cuda:{variant}'.", hint=f"Known: cuda ({' and '.join(DEFAULT)}), {known}.")
        self.architecture = variant

    @classmethod
    def variants(cls) -> Sequence[str]:
        return DEFAULT

    @property
    def name(self) -> str:
        return f"cuda:{self.architecture}"

    @staticmethod
    def compile_variants(
        targets: Sequence[CudaTarget],
        graphs: Sequence[GraphToCompile],
        state: Sequence[schema.StateEntry],
        store: BlobStore,
        cache: CompileCache,
    ) -> list[TargetEntry]:
        """Compile for several architectures. Each graph is lowered once. The lowest has PTX, too."""
        refuse_unsupported(graphs)
        graphs, sequences = in_parts([_step(item) for item in graphs])
        targets = sorted(targets, key=lambda target: chips.number(target.architecture))
        made = {target.architecture: Made() for target in targets}
        with temporary_directory(Path(tempfile.gettempdir())) as folder, Workers() as workers:
            for item in graphs:
                alone = replace(item, private=frozenset(), saved={})  # values between the graphs keep the graphs' layouts
                call = convert_graph(alone, {}, ())
                files = _compiled(made, item, call, cache, folder, workers)
                for i, target in enumerate(targets):
                    found, code = made[target.architecture], files[target.architecture]
                    found.add(item, call, code, store, _kernels(found, code, store, with_ptx=i == 0))
        entries = {target.architecture: target._entry(made[target.architecture], sequences) for target in targets}
        return [entries[target.architecture] for target in targets]

    def _entry(self, made: Made, sequences: dict[str, schema.Sequence]) -> TargetEntry:
        release = ".".join(torch.__version__.split(".")[:2])
        is_x86 = cpuinfo.architecture() == "amd64"
        has_ptx = any(kernel.ptx for code in made.executables.values() for kernel in code.kernels.values())
        target = schema.Target(
            name=self.name,
            kind="aoti",
            device="cuda",
            executables=made.executables,
            sequences=sequences,
            constraints={name: sorted(found) for name, found in sorted(made.constraints.items())},
            architecture=cpuinfo.architecture(),
            instruction_set=_LEVEL if is_x86 else "",
            cpu_features=list(cpuinfo.X86_LEVELS[_LEVEL]) if is_x86 else [],
            torch=f"=={release}.*",
            toolchain=_tools([self.architecture]),
            imports=sorted(made.imports),
            gpu=_gpu(self.architecture, has_ptx=has_ptx),
        )
        return TargetEntry(target, schema.Platform(cpuinfo.architecture(), "linux"), made.layers)


def _step(item: GraphToCompile) -> GraphToCompile:
    """A step of an optimizer for large parameters. The numbers that it reads stay on the GPU, so nothing waits for it."""
    if item.method is None or not item.method.step:
        return item
    symbols = [structs.replace(symbol, hint=_ELEMENTS) for symbol in item.method.symbols]
    module = to_fx(item.graph, symbols_of(structs.replace(item.method, symbols=symbols), [item.graph]))
    return replace(item, module=numbers_as_tensors(module))


def _kernels(made: Made, files: Files, store: BlobStore, *, with_ptx: bool) -> dict[str, schema.CudaKernel]:
    """The kernels of a graph, added to ``made``."""
    described: dict[str, schema.CudaKernel] = {}
    for name, kernel in msgspec.msgpack.decode(files["kernels"], type=dict[str, _StoredKernel]).items():
        cubin = made.layer(store, kernel.cubin, media_types.CODE_CUBIN)
        ptx = made.layer(store, kernel.ptx, media_types.CODE_PTX) if with_ptx and kernel.ptx else None
        described[name] = schema.CudaKernel(cubin, ptx, **kernel.document)
    return described


def _gpu(architecture: str, *, has_ptx: bool) -> schema.Gpu:
    assembler = toolkit.assembler_release(architecture)
    return schema.Gpu(
        chips.capability(architecture),
        kernels.minimum_driver(architecture, assembler),
        is_exact=not chips.has_portable_ptx(architecture),
        ptx=toolkit.ptx_version(assembler) if has_ptx else "",
        ptx_driver=assembler if has_ptx else "",
    )


def _tools(architectures: Sequence[str]) -> dict[str, str]:
    """What compiles: part of the cache's key, and of the record of the tool chain."""
    assemblers = {toolkit.assembler_release(architecture) for architecture in architectures}
    return {
        **commands.inductor_fingerprint(),
        "triton": toolkit.triton_version(),
        "ptxas": ", ".join(sorted(assemblers)),
        "attention": "matrix products and a softmax",
    }


def _compiled(
    architectures: Mapping[str, object],
    item: GraphToCompile,
    call: ConvertedGraph,
    cache: CompileCache,
    folder: Path,
    workers: Workers,
) -> dict[str, Files]:
    """The code of a graph for each architecture: from the cache, or lowered once for all that it lacks."""
    made_by = {"revision": revision_of(*_SOURCES), **applying.record_of_fixes(inductor=True, untested=False)}
    options = {name: {**_tools([name]), "call": call.fingerprint, "architecture": name, **made_by} for name in architectures}
    found = {name: cache.find(item.graph, each) for name, each in options.items()}
    lacking = [name for name, files in found.items() if files is None]
    if lacking:
        march = _LEVEL if cpuinfo.architecture() == "amd64" else None
        with messages.own_warnings(), messages.quiet_torch_logs(), refusing(item.key, "cuda", _HINT):
            code = lower_for_cuda(call.to_lower, folder / item.key, lacking, march, ATTENTION)
            distinct = {id(library): library for library in code.libraries.values()}
            for library in distinct.values():
                library.start(workers.compilers, workers.chains, objects=cache, shared=CompileCache())
            for library in distinct.values():
                library.finish()
        for name in lacking:
            files = files_of(code.libraries[name])
            files["kernels"] = msgspec.msgpack.encode({kernel.name: _stored(kernel, name) for kernel in code.kernels})
            cache.keep(item.graph, options[name], files)
            found[name] = files
    return {name: files for name, files in found.items() if files is not None}


def _stored(kernel: kernels.Kernel, architecture: str) -> _StoredKernel:
    binary = kernel.binaries[architecture]
    document = {
        "grid": list(kernel.grid),
        "warps": kernel.warps,
        "shared": binary.shared,
        "arguments": kernel.arguments,
        "blocks": kernel.configuration,
    }
    return _StoredKernel(document, binary.cubin, binary.ptx)

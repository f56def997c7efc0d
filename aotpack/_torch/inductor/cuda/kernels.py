"""Chooses a configuration for each kernel that Inductor generates, and compiles it for several architectures."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from torch._inductor.codecache import CudaKernelParamCache
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.runtime.triton_helpers import get_constexprs
from torch._inductor.runtime.triton_heuristics import CachingAutotuner, GridExpr, TritonCompileResult, config_to_dict

from ...api.patching import replaced
from ..toolchain.directories import variable
from .chips import CHIPS, common_properties, has_portable_ptx, number

_ID = "inductor-cuda-kernels"
_WARP: Final = 32
_ELEMENTS_OF_A_THREAD: Final = 8
"""What a thread computes at best: enough loads in flight at once, and few registers."""
SHARED: Final = "AOTPACK_SHARED_"
"""Prefix of the names that stand in a wrapper for the shared memory of kernels, which depends on the architecture."""


class Binary(NamedTuple):
    """A kernel for one architecture. ``shared``: bytes of memory that a block takes. ``ptx`` is empty if it fits no other."""

    cubin: bytes
    ptx: bytes
    shared: int


class Kernel(NamedTuple):
    """A kernel of a graph: its name, how it is launched, and its code by architecture.

    ``grid`` are three expressions of its sizes, ``arguments`` the types of what it is given, ``configuration`` its block sizes.
    ``source`` is the function in Triton's language. ``names`` are its arguments that are given, and ``constants`` the others.
    """

    name: str
    grid: tuple[str, str, str]
    warps: int
    arguments: list[str]
    configuration: dict[str, int]
    source: str
    names: list[str]
    constants: dict[str, Any]
    binaries: dict[str, Binary]


@contextlib.contextmanager
def kernels_compiled(architectures: Sequence[str], found: list[Kernel]) -> Iterator[None]:
    """Compile each kernel that Inductor defines for all architectures, and add it to ``found``.

    Inductor itself would run all configurations of each, and keep the fastest.
    """

    def compile_all(wrapper: Any) -> None:
        wrapper.kernel_autotune_defs.splice("async_compile.wait(globals())\ndel async_compile")
        scope: dict[str, Any] = {}
        exec(wrapper.kernel_autotune_defs.getvalue(), scope)  # noqa: S102 - the sources that Inductor has written for this build
        for value in list(scope.values()):
            if isinstance(value, CachingAutotuner):
                found.append(_compiled(value, architectures))

    CudaKernelParamCache.cache_clear()
    with (
        variable("TRITON_DISABLE_LINE_INFO", "1"),  # else paths of this machine are in the code
        replaced(_ID, PythonWrapperCodegen, "generate_and_run_autotune_block", compile_all),
    ):
        yield
    CudaKernelParamCache.cache_clear()


def _compiled(tuner: Any, architectures: Sequence[str]) -> Kernel:
    """Compile a kernel, and tell Inductor how it is launched."""
    name = tuner.inductor_meta["kernel_name"]
    config = chosen(tuner.configs, tuner.size_hints or {})
    meta = tuner._create_compile_meta(config)
    compiled = {architecture: _compile(tuner, config, architecture) for architecture in architectures}
    binary = compiled[architectures[0]]
    for architecture, other in compiled.items():
        if other.metadata.shared > CHIPS[architecture].shared:
            raise ValueError(f"{name} takes {other.metadata.shared} bytes of shared memory, more than {architecture} has")
        if _launched_as(other) != _launched_as(binary):
            raise ValueError(f"{name} is launched in another way on {architecture} than on {architectures[0]}")
    result = TritonCompileResult(binary, config, meta, tuner.inductor_meta)
    constexprs = get_constexprs(tuner.fn)
    call_args, def_args, none_args = result._get_arg_lists(tuner.fn.arg_names, constexprs)
    block = config_to_dict(config)
    call_args = [x for x in call_args if meta["signature"].get(x, "constexpr") != "constexpr" and x not in none_args]
    launch = {
        "mangled_name": binary.metadata.name,
        "num_warps": binary.metadata.num_warps,
        "shared_mem": f"{SHARED}{name}",
        "stream": "stream",
        "config": block,
        "inductor_meta": tuner.inductor_meta,
        "triton_meta": tuner.triton_meta,
        "def_args": [x for x in def_args if x not in block],
        "call_args": call_args,
        "global_scratch": binary.metadata.global_scratch_size,
        "profile_scratch": binary.metadata.profile_scratch_size,
        "cubin_path": f"{name}.cubin",
        "runtime_bin_path": "",
        "asm": "",
    }
    known: dict[str, Any] = CudaKernelParamCache.cache
    known[name] = launch
    grid = GridExpr.from_meta(tuner.inductor_meta, block, mode="python")
    sizes = {key: value for key, value in block.items() if isinstance(value, int) and key not in ("num_warps", "num_ctas")}
    passed = [*(meta["signature"][x] for x in call_args), *_scratch(launch)]
    return Kernel(
        name,
        _grid(grid, meta["constants"]),
        binary.metadata.num_warps,
        passed,
        sizes,
        tuner.fn.src,
        call_args,
        meta["constants"],
        {architecture: _stored(each, architecture) for architecture, each in compiled.items()},
    )


def _compile(tuner: Any, config: Any, architecture: str) -> Any:
    """A kernel compiled by Triton, which keeps it in its cache."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    meta = tuner._create_compile_meta(config) | {"cc": number(architecture)}
    source = ASTSource(tuner.fn, meta["signature"], meta["constants"], meta["configs"][0])
    target = GPUTarget("cuda", number(architecture), _WARP)
    return triton.compile(source, target=target, options=tuner._create_compile_options(config, meta))


def _launched_as(binary: Any) -> tuple[Any, ...]:
    """What the host's code knows of a kernel, besides its shared memory."""
    known = binary.metadata
    return known.name, known.num_warps, known.num_ctas, known.global_scratch_size, known.profile_scratch_size


def _stored(binary: Any, architecture: str) -> Binary:
    ptx = binary.asm["ptx"].encode() if has_portable_ptx(architecture) else b""
    return Binary(binary.asm["cubin"], ptx, binary.metadata.shared)


def _scratch(launch: dict[str, Any]) -> list[str]:
    """The types of the arguments that Inductor's wrapper adds: memory for the kernel's own use."""
    return ["*i8" for name in ("global_scratch", "profile_scratch") if launch[name] is not None]


def _grid(grid: GridExpr, constants: dict[str, Any]) -> tuple[str, str, str]:
    """The numbers of blocks as expressions of what a kernel is given."""

    def text(rule: str | int) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda name: str(constants.get(name[0], name[0])), " ".join(str(rule).split()))

    return text(grid.x_grid), text(grid.y_grid), text(grid.z_grid)


def chosen(configs: Sequence[Any], size_hints: dict[str, int]) -> Any:
    """The configuration by rule: enough blocks for all processors, then about eight elements a thread, then most warps.

    Of a reduction a block holds all that it reads at once.
    """
    processors = common_properties().multi_processor_count

    def cost(config: Any) -> tuple[float, float, int]:
        blocks, elements = 1, 1
        for prefix, size in size_hints.items():
            block = config.kwargs.get(f"{prefix.upper()}BLOCK", size if prefix.startswith("r") else 1)
            elements *= min(block, size)
            if not prefix.startswith("r"):
                blocks *= -(-size // block)
        of_a_thread = elements / (config.num_warps * _WARP)
        return (
            max(0.0, math.log2(2 * processors / blocks)),
            abs(math.log2(of_a_thread / _ELEMENTS_OF_A_THREAD)),
            -config.num_warps,
        )

    return min(configs, key=cost)


def defines(kernels: Sequence[Kernel], architecture: str) -> str:
    """The lines of a wrapper that say how much shared memory its kernels take on an architecture."""
    return "".join(f"#define {SHARED}{kernel.name} {kernel.binaries[architecture].shared}\n" for kernel in kernels)


def minimum_driver(architecture: str, assembler: str) -> str:
    """The first release of CUDA whose driver runs code for an architecture that this release of the assembler has made.

    Code runs on drivers of the same major release, if they know the architecture.
    """
    return max(f"{assembler.partition('.')[0]}.0", CHIPS[architecture].cuda, key=lambda text: [*map(int, text.split("."))])

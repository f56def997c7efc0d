"""Runs code for GPUs on a machine without one: the host code as it is, and each kernel it launches in Triton's interpreter.

``TRITON_INTERPRET=1`` must be set before Triton is imported. Tensors are in the host's memory, and the driver
is ``driver.c``. What a matrix product or another operator of torch's computes on a GPU, its kernel for the CPU computes here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import math
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from aotpack.targets.cuda import target as compiling
from aotpack_loader import _torch_compat
from aotpack_loader.devices import cuda

FOLDER = Path(__file__).parent
_OF_GPUS = re.compile(r"aoti_torch_cuda_(?!guard)\w+")
_TYPES = {
    "i1": (ctypes.c_bool, torch.bool), "i8": (ctypes.c_int8, torch.int8), "i16": (ctypes.c_int16, torch.int16),
    "i32": (ctypes.c_int32, torch.int32), "i64": (ctypes.c_int64, torch.int64), "u8": (ctypes.c_uint8, torch.uint8),
    "u16": (ctypes.c_uint16, torch.uint16), "u32": (ctypes.c_uint32, torch.uint32), "u64": (ctypes.c_uint64, torch.uint64),
    "fp16": (None, torch.float16), "bf16": (None, torch.bfloat16), "fp32": (ctypes.c_float, torch.float32),
    "fp64": (ctypes.c_double, torch.float64), "fp8e4nv": (None, torch.float8_e4m3fn), "fp8e5": (None, torch.float8_e5m2),
}  # fmt: skip


class Launch(NamedTuple):
    """A launch that the driver was asked for."""

    name: str
    grid: tuple[int, int, int]
    threads: int
    shared: int
    arguments: list[Any]


class Simulator:
    """The driver, and what it was asked for: ``launches``. ``sources`` describes kernels by the digest of their code.

    ``problems`` are launches that a GPU would refuse or get wrong.
    """

    def __init__(self, folder: Path, sources: dict[str, Any]) -> None:
        self.folder, self.sources = folder, sources
        self.launches: list[Launch] = []
        self.problems: list[str] = []
        self.planted: Callable[[Launch], None] = lambda launch: None
        self._driver = ctypes.CDLL(os.fspath(_built(folder, "libcuda.so.1", [])), mode=ctypes.RTLD_GLOBAL)
        _built(folder, "libtorch_cuda.so", [])
        ctypes.CDLL(os.fspath(folder / "libtorch_cuda.so"), mode=ctypes.RTLD_GLOBAL)
        kinds = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.c_uint32]
        self._callback = ctypes.CFUNCTYPE(ctypes.c_int, *kinds, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))(self._launched)
        self._driver.aotpack_stub_on_launch(self._callback)
        self._alive: list[Any] = []

    def runner(self, package: Path, index: int = -1) -> Callable[[list[Any]], list[Any]]:
        """Stands for torch's own runner, which CPU builds of torch lack. It calls the code's C interface."""
        folder = Path(os.path.realpath(package / "data" / "aotinductor" / "model"))
        library = folder / "code.wrapper.so"
        listed = subprocess.run(["nm", "-D", "--undefined-only", library], check=True, capture_output=True, text=True).stdout
        wanted = sorted({name for name in re.findall(r"\b[Uw] (\w+)", listed) if _OF_GPUS.fullmatch(name)})
        if wanted:
            name = f"libaotpack_{hashlib.sha256(' '.join(wanted).encode()).hexdigest()[:12]}.so"
            ctypes.CDLL(os.fspath(_built(self.folder, name, wanted)), mode=ctypes.RTLD_GLOBAL)
        code = ctypes.CDLL(os.fspath(library))
        self._alive.append(code)
        container = ctypes.c_void_p()
        check(code, code.AOTInductorModelContainerCreateWithDevice(
            ctypes.byref(container), ctypes.c_size_t(1), b"cuda:0", os.fspath(folder).encode()), self.problems)  # fmt: skip
        count = ctypes.c_size_t()
        check(code, code.AOTInductorModelContainerGetNumOutputs(container, ctypes.byref(count)), self.problems)

        def run(inputs: list[Any]) -> list[Any]:
            given = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(inputs)
            pointers = (ctypes.c_void_p * len(inputs))(*map(_address, given))
            results = (ctypes.c_void_p * count.value)()
            inputs.clear()
            nothing = ctypes.c_void_p()
            status = code.AOTInductorModelContainerRun(
                container, pointers, ctypes.c_size_t(len(given)), results, count, nothing, nothing
            )
            check(code, status, self.problems)
            return [torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(_capsule(each)) for each in results]

        return run

    def _launched(self, path: bytes, name: bytes, grid: Any, threads: int, shared: int, allowed: int, args: Any) -> int:
        try:
            self._run(Path(path.decode()), name.decode(), (grid[0], grid[1], grid[2]), threads, shared, allowed, args)
        except Exception as error:
            import traceback

            self.problems.append("".join(traceback.format_exception(error)))
            return 700
        return 0

    def _run(self, path: Path, name: str, grid: tuple[int, int, int], threads: int, shared: int, allowed: int, args: Any) -> None:
        described = self.sources[hashlib.sha256(path.read_bytes()).hexdigest()]
        values = [_value(kind, args[i]) for i, kind in enumerate(described["arguments"])]
        launch = Launch(name, grid, threads, shared, values)
        self.planted(launch)
        self.launches.append(launch)
        if name != described["name"]:
            raise AssertionError(f"{name} is launched from the code of {described['name']}")
        if threads != described["warps"] * 32 or shared != described["shared"] or (shared > 0 and allowed < shared):
            raise AssertionError(
                f"{name} is launched with {threads} threads and {shared} bytes of shared memory, {allowed} allowed"
            )
        named = dict(zip(described["names"], values, strict=False))
        expected = tuple(
            int(eval(each, {"max": max, "min": min}, {**named, **described["blocks"]})) for each in described["grid"]
        )
        if grid != expected:
            raise AssertionError(f"{name} is launched with {grid} blocks, and its rule gives {expected}")
        for key, value, kind in zip(described["names"], values, described["arguments"], strict=False):
            if kind.startswith("*") and not value:
                raise AssertionError(f"{name}: {key} is at {value:#x}")
        interpret(described, named, grid)


def check(code: Any, status: int, problems: list[str]) -> None:
    """Raise the error that code, or a launch, has left."""
    if problems:
        raise AssertionError("; ".join(problems))
    if status:
        told = getattr(code, "AOTInductorGetLastError", None)
        if told is not None:
            told.restype = ctypes.c_char_p
        raise RuntimeError((told() or b"").decode() if told else "the code failed")


def _value(kind: str, pointer: int) -> Any:
    if kind.startswith("*"):
        return ctypes.c_void_p.from_address(pointer).value or 0
    made = _TYPES[kind][0]
    if made is None:
        made = ctypes.c_float
    return made.from_address(pointer).value


def _address(capsule: Any) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get(capsule, None) or 0)


def _capsule(address: int) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(address, None, None)


def _built(folder: Path, name: str, wanted: list[str]) -> Path:
    """A library of the driver, or of functions that jump to those of the CPU."""
    made = folder / name
    if not made.exists():
        source = FOLDER / "driver.c"
        if name != "libcuda.so.1":
            source = folder / f"{name}.s"
            jumps = [f"{each}: jmp {each.replace('_cuda_', '_cpu_', 1)}@PLT\n" for each in wanted]
            source.write_text(
                "".join(f".globl {each}\n.type {each},@function\n{jump}" for each, jump in zip(wanted, jumps, strict=True))
            )
        torchs = Path(torch.__file__).parent / "lib"
        links = ["-Wl,--no-as-needed", f"-L{torchs}", "-ltorch_cpu", f"-Wl,-rpath,{torchs}"] if wanted else []
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            "-O1",
            "-w",
            f"-Wl,-soname,{name}",
            "-o",
            os.fspath(made),
            os.fspath(source),
            *links,
        ]
        subprocess.run(command, check=True, capture_output=True)
    return made


class _Pointer:
    """Memory as Triton's interpreter takes it."""

    def __init__(self, address: int, dtype: torch.dtype) -> None:
        self.address, self.dtype = address, dtype

    def data_ptr(self) -> int:
        return self.address


@functools.cache
def _function(source: str) -> Any:
    import linecache

    import triton
    import triton.language as tl
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime.triton_helpers import math as tl_math

    assert triton.knobs.runtime.interpret, "set TRITON_INTERPRET=1"
    name = f"<{hashlib.sha256(source.encode()).hexdigest()}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope = {"triton": triton, "tl": tl, "triton_helpers": triton_helpers, "tl_math": tl_math, "libdevice": Libdevice(tl)}
    exec(compile(source, name, "exec"), scope)
    found = next(
        value for key, value in scope.items() if key.startswith("triton_") and callable(value) and key != "triton_helpers"
    )
    return triton.jit(found)


def interpret(described: dict[str, Any], named: dict[str, Any], grid: tuple[int, int, int]) -> None:
    """Run a kernel in the interpreter."""
    given: dict[str, Any] = dict(described["constants"])
    for name, kind in zip(described["names"], described["arguments"], strict=False):
        given[name] = _Pointer(named[name], _TYPES[kind.removeprefix("*")][1]) if kind.startswith("*") else named[name]
    run(_function(described["source"]), given, grid)


def run(function: Any, given: dict[str, Any], grid: tuple[int, int, int]) -> None:
    """What ``function[grid](**given)`` does, but for arguments that are addresses: nothing is copied."""
    from triton.runtime import interpreter

    class Executor(interpreter.GridExecutor):
        def _init_args_hst(self, args: Any, kwargs: Any) -> Any:
            return args, kwargs

        def _restore_args_dev(self, *_: Any) -> None:
            pass

    with np.errstate(all="ignore"):
        Executor(function.rewrite(), function.arg_names, grid)(**given)


class Libdevice:
    """NVIDIA's library of functions, as numpy computes them."""

    _MADE: dict[str, Callable[..., Any]] = {
        "rsqrt": lambda x: 1 / np.sqrt(x), "erf": np.vectorize(math.erf, otypes=[np.float64]), "pow": np.power, "abs": np.abs,
        "fmod": np.fmod, "atan2": np.arctan2, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh,
        "acosh": np.arccosh, "atanh": np.arctanh, "erfc": np.vectorize(math.erfc, otypes=[np.float64]), "nearbyint": np.rint,
        "llrint": lambda x: np.rint(x).astype(np.int64), "lgamma": np.vectorize(math.lgamma, otypes=[np.float64]),
        "tgamma": np.vectorize(math.gamma, otypes=[np.float64]), "isnan": np.isnan, "isinf": np.isinf, "signbit": np.signbit,
        "fast_dividef": np.divide, "div_rn": np.divide, "mul_rn": np.multiply,
        "round": lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5),
    }  # fmt: skip

    def __init__(self, tl: Any) -> None:
        self._tl = tl

    def __getattr__(self, name: str) -> Any:
        function = self._MADE.get(name) or getattr(np, name)

        def call(*args: Any) -> Any:
            from triton.runtime.interpreter import TensorHandle

            first = next(each for each in args if hasattr(each, "handle"))
            values = [each.handle.data if hasattr(each, "handle") else each for each in args]
            found = np.asarray(function(*values))
            dtype = first.dtype
            if found.dtype == np.bool_:
                dtype, kind = self._tl.int1, np.bool_
            elif found.dtype == np.int64 and name == "llrint":
                dtype, kind = self._tl.int64, np.int64
            else:
                kind = first.handle.data.dtype
            made = TensorHandle(found.astype(kind), dtype)
            return self._tl.tensor(made, self._tl.block_type(dtype, list(found.shape)) if found.shape else dtype)

        return call


def sources_of(kernels: list[Any]) -> dict[str, Any]:
    """What a replay needs of compiled kernels, by the digests of their code; JSON can hold it."""
    found = {}
    for kernel, binary in ((each, binary) for each in kernels for binary in each.binaries.values()):
        found[hashlib.sha256(binary.cubin).hexdigest()] = {
            **{name: getattr(kernel, name) for name in ("name", "grid", "warps", "arguments", "names", "source")},
            "shared": binary.shared,
            "blocks": kernel.configuration,
            "constants": {key: value for key, value in kernel.constants.items() if isinstance(key, str)},
        }
    return json.loads(json.dumps(found))


@contextlib.contextmanager
def simulated(folder: Path, sources: dict[str, Any]) -> Iterator[Simulator]:
    """Within the block, bundles load with ``backend="cuda:sm80"`` on a GPU that is simulated. Their tensors are on the CPU."""
    simulator = Simulator(folder, sources)
    made = cuda.CudaDevice.__init__

    def on_the_cpu(device: Any, bundle: Any, target: Any, asked: Any) -> None:
        made(device, bundle, target, torch.device("cuda", 0))
        device.device = device.scalars = torch.device("cpu")

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (_torch_compat, "aoti_runner", simulator.runner),
            (cuda, "unfit", lambda target, device: ""),
            (cuda.CudaDevice, "__init__", on_the_cpu),
            (torch.cuda, "get_device_capability", lambda device=None: (8, 0)),
            (torch.cuda, "device", lambda device: contextlib.nullcontext()),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield simulator


@contextlib.contextmanager
def sources_kept() -> Iterator[dict[str, Any]]:
    """What builds in the block compile, as :class:`Simulator` takes it. What the cache has is not compiled."""
    found: dict[str, Any] = {}
    lower = compiling.lower_for_cuda

    def kept(*args: Any) -> Any:
        code = lower(*args)
        found.update(sources_of(code.kernels))
        return code

    with mock.patch.object(compiling, "lower_for_cuda", kept):
        yield found

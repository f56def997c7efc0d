"""All APIs of jax and jaxlib that the loader uses, most of them private.

Importing this module imports jax. Only code that runs XLA's executables imports it. jaxlib does not
promise to read executables of another release, so bundles name the exact release. Tried on: jax and
jaxlib 0.10.2, the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # jax's own default: no line for each device

import jax  # noqa: F401 - jaxlib makes arrays of jax's class, and jax registers the functions that code calls
import torch
from jaxlib import _jax, lapack, xla_client
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

_ALIGNMENT = 64
"""Bytes. jaxlib copies arguments at other addresses."""


@cache
def cpu_client() -> Any:
    """The PJRT client for this machine's CPU.

    The client is synchronous. torch may write to an argument, or read a result, as soon as a call
    has returned.
    """
    lapack._lapack.initialize()  # jax does when it compiles a call of LAPACK, and here nothing is compiled
    return xla_client.make_cpu_client(asynchronous=False)


def loaded(executable: bytes) -> Any:
    """The output of ``LoadedExecutable.serialize`` of the same jaxlib. It must be trusted: loading it may run any code.

    Raises:
        RuntimeError: jaxlib cannot load it.
    """
    return cpu_client().deserialize_executable(executable, _devices())


def compiled(program: bytes) -> Any:
    """A portable artifact of StableHLO, compiled for this machine. It must be trusted as well: it may call any function of jax.

    Twin: the compiler's targets/xla/compiler_process.py, compiled.

    Raises:
        ValueError: it is damaged, or of a later version than this jaxlib reads.
        RuntimeError: XLA cannot compile it.
    """
    with ir.Context() as context:
        stablehlo.register_dialect(context)
        return cpu_client().compile_and_load(stablehlo.deserialize_portable_artifact(context, program), _devices())


def _devices() -> Any:
    return _jax.DeviceList((cpu_client().local_devices()[0],))


class Executable:
    """XLA's code for the CPU.

    Arguments and results share memory with torch's tensors (DLPack). An argument whose address is
    not a multiple of 64 bytes is copied.

    Args:
        code: of :func:`loaded` or :func:`compiled`.
        state: the positions of arguments that are in the same memory at most calls. Their buffers
            are kept, and see what is written to that memory in place.
    """

    def __init__(self, code: Any, state: Collection[int] = ()) -> None:
        self._device = cpu_client().local_devices()[0]
        self._run, self._state = code, frozenset(state)
        self._kept: dict[int, tuple[object, Any]] = {}

    def __call__(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run it. The results are complete when this returns.

        Raises:
            RuntimeError: an argument has another size, or memory is exhausted.
        """
        arrays = [self._of_state(i, tensor) if i in self._state else self._buffer(tensor) for i, tensor in enumerate(arguments)]
        return [from_dlpack(_jax.buffer_to_dlpack_managed_tensor(array)) for array in self._run.execute(arrays)]

    def _buffer(self, tensor: torch.Tensor) -> Any:
        return _jax.dlpack_managed_tensor_to_buffer(to_dlpack(tensor.contiguous()), self._device, None)

    def _of_state(self, i: int, tensor: torch.Tensor) -> Any:
        place = tensor.data_ptr()
        key = (place, tensor.dtype, tensor.shape, tensor.stride())
        kept = self._kept.get(i)
        if kept is not None and kept[0] == key:
            return kept[1]
        buffer = self._buffer(tensor)
        if place % _ALIGNMENT == 0 and tensor.is_contiguous():  # else the buffer is a copy
            self._kept[i] = key, buffer
        return buffer

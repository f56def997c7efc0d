"""All APIs of jax and jaxlib that the loader uses, most of them private.

Importing this module imports jax. Only code that runs XLA's executables imports it. jaxlib does not
promise to read executables of another release, so bundles name the exact release. Tried on: jax and
jaxlib 0.10.2, the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # jax's own default: no line for each device

import jax  # noqa: F401 - jaxlib makes arrays of jax's class, and jax registers the functions that code calls
import torch
from jaxlib import _jax, lapack, xla_client
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]


@cache
def cpu_client() -> Any:
    """The PJRT client for this machine's CPU.

    The client is synchronous. torch may write to an argument, or read a result, as soon as a call
    has returned.
    """
    lapack._lapack.initialize()  # jax does when it compiles a call of LAPACK, and here nothing is compiled
    return xla_client.make_cpu_client(asynchronous=False)


class Executable:
    """XLA's compiled code for the CPU, loaded without compilation.

    Arguments and results share memory with torch's tensors (DLPack). An argument whose address is
    not a multiple of 64 bytes is copied.

    Args:
        serialised: the output of ``LoadedExecutable.serialize`` of the same jaxlib. It must be
            trusted: loading it may run any code.

    Raises:
        RuntimeError: jaxlib cannot load it.
    """

    def __init__(self, serialised: bytes) -> None:
        client = cpu_client()
        self._device = client.local_devices()[0]
        self._run = client.deserialize_executable(serialised, _jax.DeviceList((self._device,)))

    def __call__(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run it. The results are complete when this returns.

        Raises:
            RuntimeError: an argument has another size, or memory is exhausted.
        """
        device = self._device
        arrays = [_jax.dlpack_managed_tensor_to_buffer(to_dlpack(tensor.contiguous()), device, None) for tensor in arguments]
        return [from_dlpack(_jax.buffer_to_dlpack_managed_tensor(array)) for array in self._run.execute(arrays)]

"""Every API of jax and jaxlib that the loader touches, most of them private, and nothing else.

Importing this module imports jax: only what runs XLA's executables does. jaxlib keeps no promise that one release reads what
another wrote, so bundles name the exact one. Tried on: jax and jaxlib 0.10.2, the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # as jax itself sets it: no line for each device

import jax  # noqa: F401 - jaxlib makes arrays of jax's class
import torch
from jaxlib import _jax
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

TRIED_ON = ("0.10.2",)


@cache
def cpu_client() -> Any:
    """The PJRT client for this machine's CPU.

    A synchronous one: torch may write to an argument, or read a result, as soon as a call has returned.
    """
    return _jax.get_tfrt_cpu_client(asynchronous=False)


class Executable:
    """XLA's code for the CPU, loaded: nothing is compiled.

    Arguments and results share memory with torch's tensors (DLPack); an argument that does not begin at a multiple of 64 bytes
    is copied.

    Args:
        serialised: what ``LoadedExecutable.serialize`` of the same jaxlib wrote. Loading it may run anything: it must be trusted.

    Raises:
        RuntimeError: jaxlib cannot load it.
    """

    def __init__(self, serialised: bytes) -> None:
        client = cpu_client()
        self._device = client.local_devices()[0]
        self._run = client.deserialize_executable(serialised, _jax.DeviceList((self._device,)))

    def __call__(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run it; the results are there when this returns.

        Raises:
            RuntimeError: an argument has another size, or there is no memory.
        """
        device = self._device
        arrays = [_jax.dlpack_managed_tensor_to_buffer(to_dlpack(tensor.contiguous()), device, None) for tensor in arguments]
        return [from_dlpack(_jax.buffer_to_dlpack_managed_tensor(array)) for array in self._run.execute(arrays)]

"""Code for NVIDIA's GPUs: what it needs of the machine, and how it runs there.

As all native code it runs only after :mod:`aotpack_loader.trust` has allowed it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from .. import _torch_compat
from .._symbols import not_exported_by_torch
from ..archive.bundle import Bundle
from ..errors import CorruptBundleError
from ..format import schema
from ..format.validate_target import KERNEL_NAME
from .aoti import AotiDevice
from .elsewhere import moved
from .packages import package_of

_SHOWN: Final = 5

Version = tuple[int, ...]


def unfit(target: schema.Target, device: torch.device | None) -> str:
    """Why code for GPUs cannot run on ``device`` (null: the current one), or an empty string."""
    gpu = target.gpu
    if gpu is None:
        return "does not say which GPUs it is for"
    if torch.version.cuda is None:
        return f"runs on NVIDIA's GPUs, and torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "runs on NVIDIA's GPUs, and torch finds none here"
    found, driver = torch.cuda.get_device_capability(device), _torch_compat.cuda_driver()
    name = f"{torch.cuda.get_device_name(device)} (compute capability {'.'.join(map(str, found))})"
    kind = kind_of_code(gpu, found)
    if not kind:
        adds = f"'aotpack compile' adds cuda:sm{found[0]}{found[1]}"
        return f"has code for compute capability {gpu.capability}, and this is {name}; {adds}"
    needed = gpu.driver if kind == "code" else gpu.ptx_driver
    if _numbers(needed) > driver:
        return f"needs a driver of CUDA {needed} or later; this one is of CUDA {'.'.join(map(str, driver))}"
    if missing := not_exported_by_torch(target.imports):
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        return f"calls what torch {torch.__version__} lacks: {', '.join(missing[:_SHOWN])}{more}"
    return ""


def kind_of_code(gpu: schema.Gpu, capability: Version) -> str:
    """Which code of kernels a GPU runs: ``code``, ``ptx``, which its driver compiles, or none."""
    made_for = _numbers(gpu.capability)
    if capability == made_for or (not gpu.is_exact and capability[0] == made_for[0] and capability > made_for):
        return "code"
    return "ptx" if gpu.ptx and capability > made_for else ""


def _numbers(version: str) -> Version:
    """Convert ``"12.8"`` to ``(12, 8)``; what is no version is later than all."""
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d{1,4}\.\d{1,4}", version) else (1 << 30,)


def rank(target: schema.Target) -> int:
    """How well code uses a GPU that runs it: that for later ones is better."""
    major, minor = (*_numbers(target.gpu.capability), 0)[:2] if target.gpu is not None else (0, 0)
    return major * 10000 + minor


class CudaDevice(AotiDevice):
    """Runs a bundle's code on a GPU, in the stream that is current at a call."""

    def __init__(self, bundle: Bundle, target: schema.Target, device: torch.device | None) -> None:
        index = torch.cuda.current_device() if device is None or device.index is None else device.index
        super().__init__(bundle, target, torch.device("cuda", index))
        self.scalars = self.device
        self.call_library = None, "Python makes the calls of code for GPUs"
        assert target.gpu is not None, "unfit() refuses such targets"
        self._kind = kind_of_code(target.gpu, torch.cuda.get_device_capability(self.device))

    def adapted(self, program: schema.Program) -> schema.Program:
        """The program itself."""
        return program

    def moved(self, state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The state on this GPU."""
        return moved(state, self.device)

    def _package(self, library: Path, fallbacks: bytes | None, executable: schema.Executable) -> Path:
        kernels = {name: self._kernel(name, kernel) for name, kernel in executable.kernels.items()}
        return package_of(library, fallbacks, device="cuda", kernels=kernels)

    def _runner(self, package: Path) -> Callable[[list[Any]], list[Any]]:
        run = _torch_compat.aoti_runner(package, self.device.index)
        device = self.device

        def on_this_gpu(inputs: list[Any]) -> list[Any]:
            with torch.cuda.device(device):  # torch's runner takes the stream of the current device
                return run(inputs)

        return on_this_gpu

    def _kernel(self, name: str, kernel: schema.CudaKernel) -> Path:
        """The file of a kernel, extracted and checked.

        Raises:
            CorruptBundleError: it is none, or its name is no name of a file.
        """
        if not KERNEL_NAME.fullmatch(name):
            raise CorruptBundleError(f"C44: {name[:100]!r} is no name of a kernel.")
        descriptor = kernel.code if self._kind == "code" else kernel.ptx
        if descriptor is None:
            raise CorruptBundleError(f"C44: the target {self._target.name} has no PTX of the kernel {name}.")
        path = self._bundle.code(descriptor)
        with path.open("rb") as file:
            start = file.read(4096)
        if not (start.startswith(b"\x7fELF") if self._kind == "code" else b".version" in start):
            form = "cubin" if self._kind == "code" else "PTX"
            raise CorruptBundleError(f"C44: the kernel {name} of {self._target.name} is no {form}.")
        return path

"""A second device for tests without a GPU (device.cpp): torch calls it ``simulated``, and there are two of them.

A process that has it keeps it, and torch does some things in another way then. So its tests run in processes of their own.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
import types
from pathlib import Path

import torch

NAME = "simulated"
SOURCE = Path(__file__).with_name("device.cpp")


@functools.cache
def register() -> torch.device:
    """Make the device known to torch, and return the first of it."""
    torch.ops.load_library(library())
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _Module(f"torch.{NAME}"))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    return torch.device(NAME, 0)


def library() -> Path:
    """The compiled device, which is kept in ``AOTPACK_TEST_CACHE``."""
    torch_folder = Path(torch.__file__).parent
    flags = ["-O1", "-std=c++20", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    flags += [f"-I{torch_folder / 'include'}", f"-I{torch_folder / 'include/torch/csrc/api/include'}"]
    key = hashlib.sha256("\0".join([SOURCE.read_text(), torch.__version__, *flags]).encode()).hexdigest()[:24]
    folder = Path(os.environ.get("AOTPACK_TEST_CACHE") or tempfile.gettempdir()) / f"second-device-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = folder / f"{key}.so"
    if not made.exists():
        part = made.with_suffix(f".{os.getpid()}")
        command = ["g++", *flags, os.fspath(SOURCE), "-o", os.fspath(part), f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10"]
        subprocess.run(command, check=True)
        part.replace(made)
    return made


class _Module(types.ModuleType):
    """``torch.simulated``: what torch asks of the module of a device."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return torch.ops.second_device.current()

    def set_device(self, device: torch.device | int) -> None:
        torch.ops.second_device.choose(self._index(device))

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        for index in range(2):
            torch.ops.second_device.seed(index, seed)

    def manual_seed(self, seed: int) -> None:
        torch.ops.second_device.seed(self.current_device(), seed)

    def get_rng_state(self, device: torch.device | int | str = NAME) -> torch.Tensor:
        return torch.ops.second_device.state(self._index(device))

    def set_rng_state(self, state: torch.Tensor, device: torch.device | int | str = NAME) -> None:
        torch.ops.second_device.set_state(self._index(device), state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def synchronize(self, device: object = None) -> None:
        pass

    def _index(self, device: torch.device | int | str) -> int:
        if isinstance(device, int):
            return device
        index = torch.device(device).index
        return self.current_device() if index is None else index

"""What NVIDIA's tools in the package ``triton`` say of compiled kernels."""

from __future__ import annotations

import re
import subprocess
import tempfile
from typing import NamedTuple

from aotpack._torch.inductor.cuda.chips import CHIPS
from aotpack._torch.inductor.cuda.toolkit import nvidia_folder

REGISTERS = 65536
"""Registers of a block, on all architectures."""


class Usage(NamedTuple):
    """What a kernel takes: registers of a thread, bytes of its own shared memory, and sizes of its arguments."""

    registers: int
    shared: int
    arguments: list[int]


def usage(cubin: bytes) -> Usage:
    """What a kernel takes; an error if it is no code that the tools can read."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = nvidia_folder() / "bin" / "cuobjdump"
        told = subprocess.run([tool, "-res-usage", "-elf", file.name], check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) .*?SHARED:(\d+)", told)
    assert found is not None, told[:500]
    sizes = dict(re.findall(r"Ordinal\s*:\s*(0x[0-9a-f]+)\s+Offset\s*:\s*0x[0-9a-f]+\s+Size\s*:\s*(0x[0-9a-f]+)", told))
    return Usage(int(found[1]), int(found[2]), [int(sizes[key], 16) for key in sorted(sizes, key=lambda text: int(text, 16))])


def problems(name: str, architecture: str, cubin: bytes, warps: int, shared: int, arguments: list[str]) -> list[str]:
    """Why an architecture could not run a kernel as it is launched."""
    takes = usage(cubin)
    found = []
    if takes.registers * warps * 32 > REGISTERS or takes.registers > 255:
        found.append(f"{name} takes {takes.registers} registers of each of {warps * 32} threads")
    if takes.shared + shared > CHIPS[architecture].shared:
        found.append(f"{name} takes {takes.shared} + {shared} bytes of shared memory")
    if takes.arguments != [size(each) for each in arguments]:
        found.append(f"{name} takes arguments of {takes.arguments} bytes, and is given {arguments}")
    return found


def size(argument: str) -> int:
    """Bytes of an argument of a type."""
    if argument.startswith("*"):
        return 8
    return max(1, int(re.sub(r"\D", "", argument)) // 8)

"""The process in which XLA compiles: its compilers end a process for some programs, and this one is not the builder's.

Run as a program, not imported: it needs jax alone. Standard input has the programs and standard output the answers,
each with its length in eight bytes before it. An answer begins with a byte that tells whether it is a result or a
message; the first one is for the platform itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import jax  # noqa: F401 - it registers the functions of linear algebra that programs call
from jaxlib import _jax, xla_client
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as dialect


def main(platform: str, topology: str) -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what compilers print is no answer
    try:
        devices = devices_of(platform, topology)
    except RuntimeError as error:
        _answer(answers, error)
        return
    _answer(answers, str(devices[0].client.platform_version).encode())
    for program in _programs(sys.stdin.buffer):
        try:
            _answer(answers, compiled(program, devices[0], platform))
        except RuntimeError as error:
            _answer(answers, error)


def devices_of(platform: str, topology: str) -> list[Any]:
    """The devices to compile for: this machine's CPU, or those of a topology that need not be there."""
    if platform == "cpu":
        return list(xla_client.make_cpu_client(asynchronous=False).local_devices())
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # else libtpu queries Google's cloud for the TPU of this machine
    from jax.experimental import topologies

    return list(topologies.get_topology_desc(topology, platform).devices)


def compiled(program: bytes, device: Any, platform: str) -> bytes:
    """A portable artifact of StableHLO as a serialised executable.

    Twin: the loader's _jax_compat.py, compiled, which this process does not import because that imports torch.
    """
    compile = device.client.compile_and_load if platform == "cpu" else device.client.compile
    with ir.Context() as context:
        dialect.register_dialect(context)
        module = dialect.deserialize_portable_artifact(context, program)
        found: bytes = compile(module, _jax.DeviceList((device,))).serialize()
    return found


def _programs(given: BinaryIO) -> Iterator[bytes]:
    while size := given.read(8):
        yield given.read(int.from_bytes(size, "little"))


def _answer(answers: BinaryIO, what: bytes | Exception) -> None:
    told = b"-" + str(what).encode() if isinstance(what, Exception) else b"+" + what
    answers.write(len(told).to_bytes(8, "little") + told)
    answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

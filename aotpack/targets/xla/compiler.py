"""XLA's compilers, in a process of their own (:mod:`.compiler_process`)."""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import IO

_PROGRAM = Path(__file__).with_name("compiler_process.py")


class CompilerError(Exception):
    """XLA refuses the program or the platform, or its process ended."""


@cache
def compiler(platform: str, topology: str) -> Compiler:
    """The compiler for a platform, which later builds of this process use too."""
    return Compiler(platform, topology)


class Compiler:
    """Compiles programs for one platform. Its process starts with the first of them, and again after one that ended it.

    Args:
        platform: jax's name, ``cpu`` or ``tpu``.
        topology: the arrangement of chips, as libtpu names it; empty for a CPU.
    """

    def __init__(self, platform: str, topology: str) -> None:
        self._arguments = [platform, topology]
        self._process: subprocess.Popen[bytes] | None = None
        self._version = ""

    def platform_version(self) -> str:
        """What XLA says of itself.

        Raises:
            CompilerError: it does not know the platform.
        """
        self._started()
        return self._version

    def compile(self, program: bytes) -> bytes:
        """The serialised executable of a portable artifact of StableHLO.

        Raises:
            CompilerError: XLA cannot compile it, or its process ended.
        """
        process = self._started()
        with contextlib.suppress(BrokenPipeError):  # the process has ended, and why is said where its answer is missing
            _pipe(process.stdin).write(len(program).to_bytes(8, "little") + program)
            _pipe(process.stdin).flush()
        return self._answer(process)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            process, self._process = self._process, None
            atexit.unregister(self.close)
            process.communicate()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = [sys.executable, "-P", str(_PROGRAM), *self._arguments]  # -P: modules beside it have names of Python's own
            pipe = subprocess.PIPE
            self._process = process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
            atexit.register(self.close)
            self._version = self._answer(process).decode()
        return self._process

    def _answer(self, process: subprocess.Popen[bytes]) -> bytes:
        pipe = _pipe(process.stdout)
        told = pipe.read(int.from_bytes(pipe.read(8), "little"))
        if told[:1] == b"+":
            return told[1:]
        if told:
            message = told[1:].decode(errors="replace").strip().splitlines()[0]
        else:
            said = _pipe(process.stderr).read().decode(errors="replace").strip().splitlines()
            message = f"its process ended with {process.wait()}: {said[-1] if said else 'no message'}"
        if not told or not self._version:
            self.close()
        raise CompilerError(message)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe

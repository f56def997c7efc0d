"""XLA's compilers, in a process of their own (:mod:`.compiler_process`)."""

from __future__ import annotations

import subprocess
import sys
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO

_PROGRAM = Path(__file__).with_name("compiler_process.py")


class CompilerError(Exception):
    """XLA refuses the program or the platform, or its process ended."""


class Compiler:
    """Compiles programs for one platform, until the block ends. The process starts with the first question.

    Args:
        platform: jax's name, ``cpu`` or ``tpu``.
        topology: the arrangement of chips, as libtpu names it; empty for a CPU.
    """

    def __init__(self, platform: str, topology: str) -> None:
        self._arguments = [platform, topology]

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if "_process" in self.__dict__:
            _pipe(self._process.stdin).close()
            self._process.wait()
            for pipe in (self._process.stdout, self._process.stderr):
                _pipe(pipe).close()

    @cached_property
    def platform_version(self) -> str:
        """What XLA says of itself.

        Raises:
            CompilerError: it does not know the platform.
        """
        assert self._process
        return self._answer().decode()

    def compile(self, program: bytes) -> bytes:
        """The serialised executable of a portable artifact of StableHLO.

        Raises:
            CompilerError: XLA cannot compile it, or its process ended.
        """
        assert self.platform_version
        pipe = _pipe(self._process.stdin)
        try:
            pipe.write(len(program).to_bytes(8, "little") + program)
            pipe.flush()
        except BrokenPipeError:
            pass  # the process has ended, and why is said where its answer is missing
        return self._answer()

    @cached_property
    def _process(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", str(_PROGRAM), *self._arguments]  # -P: modules beside it have names of Python's own
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)

    def _answer(self) -> bytes:
        pipe = _pipe(self._process.stdout)
        size = pipe.read(8)
        told = pipe.read(int.from_bytes(size, "little"))
        if not told:
            said = _pipe(self._process.stderr).read().decode(errors="replace").strip().splitlines()
            raise CompilerError(f"its process ended with {self._process.wait()}: {said[-1] if said else 'no message'}")
        if told[:1] == b"-":
            raise CompilerError(told[1:].decode(errors="replace").strip().splitlines()[0])
        return told[1:]


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe

"""Runs code in copies of a process that has imported torch, which takes 1.3 s of processor time.

A copy has no module of this repository, and nothing in it has computed anything yet: what a process
has that starts with ``python -I`` and imports torch.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SERVER = """
import json, os, sys, traceback
import torch
print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, name in enumerate(("/dev/null", request["stdout"], request["stderr"])):
            os.dup2(os.open(name, os.O_RDWR), number)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv, sys.path[:0], status = ["-c", *request["arguments"]], request["importable"], 0
        try:
            exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else end.code is not None
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forks:
    """The process that is copied. It starts with the first use."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(
        self,
        code: str,
        arguments: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        importable: Sequence[str] = (),
        timeout: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``code`` as ``python -I -c`` does, in an empty directory ``cwd``; modules are also looked for in ``importable``."""
        server = self._started()
        streams = {name: cwd.parent / f"{cwd.name}.{name}" for name in ("stdout", "stderr")}
        for path in streams.values():
            path.touch()
        request = {"code": code, "arguments": list(arguments), "cwd": os.fspath(cwd), "environment": dict(environment)}
        request |= {"importable": list(importable), **{name: os.fspath(path) for name, path in streams.items()}}
        assert server.stdin is not None
        print(json.dumps(request), file=server.stdin, flush=True)
        status = int(self._answer(timeout))
        return subprocess.CompletedProcess(code, status, *(path.read_text() for path in streams.values()))

    def close(self) -> None:
        """End the process."""
        if self._server is not None:
            self._server.kill()
            self._server.communicate()

    def _started(self) -> subprocess.Popen[str]:
        if self._server is None:
            command = [sys.executable, "-I", "-W", "error", "-c", SERVER]
            self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert self._answer(120) == "ready"
        return self._server

    def _answer(self, timeout: float) -> str:
        assert self._server is not None
        assert self._server.stdout is not None
        if not select.select([self._server.stdout], [], [], timeout)[0]:
            self.close()
            self._server = None
            raise TimeoutError(f"no answer within {timeout} s")
        return self._server.stdout.readline().strip()

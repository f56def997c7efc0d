"""Lets a copy of this process go on with a piece of work, while this process does something else.

Inductor's lowering of a graph is data of many kinds, which cannot be sent to another process. A
copy that ``fork`` makes has all of it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn, TypeVar

import torch

from .counting import add_calls, calls

_running: Final = threading.BoundedSemaphore(max(2, os.cpu_count() or 1))
_processes: Final[set[int]] = set()
"""The copies of this process that have not ended."""
_in_place: ContextVar[bool] = ContextVar("aotpack_in_place", default=False)
_Result = TypeVar("_Result")


@contextlib.contextmanager
def in_place() -> Iterator[None]:
    """Make no copies inside the block, so that a test sees what happens in its own process."""
    before = _in_place.set(True)
    try:
        yield
    finally:
        _in_place.reset(before)


def copies_are_made() -> bool:
    """Whether work goes on in copies of this process.

    JAX's threads may hold locks that a copy would wait for, as JAX itself warns. So a process with JAX, which torch_xla
    imports, makes none.
    """
    return not _in_place.get() and hasattr(os, "fork") and "jax" not in sys.modules and "torch_xla" not in sys.modules


def beside(compute: Callable[[], _Result]) -> Callable[[], _Result]:
    """Compute something in a copy of this process, while this one goes on. Returns a function that waits for the result.

    The result can be pickled. ``compute`` raises no exception. Where no copy can be made, or it could not use CUDA as
    this process does, the function itself computes.
    """
    if not copies_are_made() or torch.cuda.is_initialized():
        return compute

    def on_one_thread() -> _Result:
        torch.set_num_threads(1)  # a copy has one thread, and torch's kernels would wait for the others
        return compute()

    return copy_that_computes(on_one_thread).result


def copy_that_computes(compute: Callable[[], object]) -> ProcessCopy:
    """A copy of this process that sends what ``compute`` returns. This process goes on."""
    copy = ProcessCopy()
    if copy.fork():
        try:
            copy.send(compute())
        finally:
            os._exit(1)  # with an exception: the copy must not go on with the build
    return copy


class ProcessCopyError(Exception):
    """A copy of this process ended without a result."""


class ProcessCopy:
    """A copy of this process that sends one result and ends.

    At most as many copies run at a time as the machine has processors.
    """

    def __init__(self) -> None:
        self.is_copy = False
        self._sender: Connection | None = None
        self._before = dict(calls())
        self._shown: list[tuple[str, type[Warning], str, int]] = []
        self._received: Future[Any] = Future()
        self._process = 0

    def fork(self) -> bool:
        """Copy this process. Returns true in the copy, which must call :meth:`send`."""
        _running.acquire()
        receiver, self._sender = Pipe(duplex=False)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: other threads wait for compilers
                process = os.fork()
        except OSError:
            _running.release()
            raise
        if process:
            self._process = process
            _processes.add(process)
            self._sender.close()
            threading.Thread(target=self._receive, args=(receiver, process), daemon=True).start()
            return False
        self.is_copy = True
        _processes.clear()  # they are the original's
        receiver.close()
        gc.disable()  # a collection would touch, and so copy, every object
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # a terminal's spinner may hold the lock of its own

        def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
            self._shown.append((str(message), category, filename, lineno))

        warnings.showwarning = show  # type: ignore[assignment]
        return True

    def send(self, result: object) -> NoReturn:
        """In the copy: send the result, and end."""
        status = 1
        try:
            counts = {name: count - self._before.get(name, 0) for name, count in calls().items()}
            assert self._sender is not None
            self._sender.send((result, counts, self._shown))
            status = 0
        finally:
            os._exit(status)  # no handler of the original runs: it will remove its own temporary files

    def result(self) -> Any:
        """Wait for the result, and show the copy's warnings. The filters of warnings were applied in the copy.

        Raises:
            ProcessCopyError: the copy ended without a result.
        """
        result, shown = self._received.result()
        for message, category, filename, lineno in shown:
            warnings.showwarning(message, category, filename, lineno)
        return result

    def end(self) -> None:
        """End the copy, if it runs: its result is not needed."""
        _end(self._process)

    def _receive(self, receiver: Connection, process: int) -> None:
        try:
            with receiver, contextlib.suppress(EOFError):  # the copy's status says that it sent nothing
                received = receiver.recv()
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
            _processes.discard(process)  # before its number can be another process's
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            if status:
                how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"exited with {status}"
                raise ProcessCopyError(f"A copy of the building process {how}.")
            result, counts, shown = received
            add_calls(counts)
            self._received.set_result((result, shown))
        except Exception as error:
            self._received.set_exception(error)
        finally:
            _running.release()


def _end(process: int) -> None:
    if process in _processes:
        os.kill(process, signal.SIGKILL)


@atexit.register
def _end_all() -> None:
    """End what still runs, for example because the build failed."""
    for process in [*_processes]:
        _end(process)

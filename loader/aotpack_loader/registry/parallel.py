"""Runs transfers side by side, a few at a time, and stops all of them when one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from .transport import Transport

T = TypeVar("T")


def run_all(transport: Transport, tasks: Iterable[Callable[[], T]]) -> list[T]:
    """Run ``tasks`` and return their results in order. The first error stops the others and is raised."""
    with ThreadPoolExecutor(transport.settings.concurrency, thread_name_prefix="aotpack-registry") as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future in done and future.exception() is not None:
                    future.result()
            return [future.result() for future in futures]
        except BaseException:
            transport.stopped.set()
            for future in futures:
                future.cancel()
            raise

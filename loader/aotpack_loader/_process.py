"""What a load changes in its process: how much freed memory malloc keeps, and when garbage is collected.

``AOTPACK_TUNE_PROCESS=0`` leaves both as they are.

``import torch`` leaves more than a million objects. A collection during the load walks all of them
(80 ms) and frees nothing.

glibc returns freed memory to the system if more than a threshold of it is free. It raises the
threshold when a large block is freed. After a compilation or hours of work it is 64 MB.

The process of a bundle stays small, so its threshold stays low. Each step then gets its activations
from the system again, page by page. For ``digits`` this costs 500 page faults, a sixth of the step.

Threads other than the first allocate from heaps of 64 MB each. glibc unmaps such a heap as soon as
it is empty. The threshold has no effect on that.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

_LARGEST = (32 << 20) - (64 << 10)
"""Bytes: the largest block from which glibc learns is 32 MB, malloc's own header and the alignment included."""

_M_TOP_PAD = -2
_OF_A_THREAD = 64 << 20
"""Bytes: glibc's ``HEAP_MAX_SIZE``."""


def is_tuned() -> bool:
    """Whether the user lets aotpack change settings of the process."""
    return os.environ.get("AOTPACK_TUNE_PROCESS") != "0"


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Disable automatic collection inside the block."""
    enabled = gc.isenabled() and is_tuned()
    if enabled:
        gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def keep_freed_memory() -> None:
    """Free a large block that was never touched, which costs two system calls.

    glibc then keeps up to 64 MB of free memory (see M_MMAP_THRESHOLD in mallopt(3)). Nothing
    changes if ``MALLOC_TRIM_THRESHOLD_`` or a similar variable is set, or with another malloc.
    """
    import torch  # not where this module is imported, which is before torch

    if is_tuned():
        torch.empty(_LARGEST, dtype=torch.uint8, device="cpu")


def keep_heaps_of_threads() -> None:
    """Make glibc keep empty heaps of threads, for processes that free all memory of a step at its end.

    glibc unmaps a heap only if the heap below has more than M_TOP_PAD left. The value set here is
    too large for that. Nothing changes if the environment configures malloc, or if the C library
    has no ``mallopt``.
    """
    import ctypes  # for XLA alone

    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and is_tuned():
        keep_freed_memory()  # first, because a call of mallopt ends the automatic adjustment of the threshold
        mallopt(_M_TOP_PAD, _OF_A_THREAD)

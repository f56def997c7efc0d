"""Configures malloc to keep the memory that a training step frees, because the next step needs it again.

glibc returns freed memory to the system if more than a threshold of it is free. It raises the
threshold when a large block is freed. After a compilation or hours of work it is 64 MB.

The process of a bundle stays small, so its threshold stays low. Each step then gets its activations
from the system again, page by page. For ``digits`` this costs 500 page faults, a sixth of the step.

Threads other than the first allocate from heaps of 64 MB each. glibc unmaps such a heap as soon as
it is empty. The threshold has no effect on that.
"""

from __future__ import annotations

import ctypes
import os

import torch

_LARGEST = (32 << 20) - (64 << 10)
"""Bytes: the largest block from which glibc learns is 32 MB, malloc's own header and the alignment included."""

_M_TOP_PAD = -2
_OF_A_THREAD = 64 << 20
"""Bytes: glibc's ``HEAP_MAX_SIZE``."""


def warm() -> None:
    """Free a large block that was never touched, which costs two system calls.

    glibc then keeps up to 64 MB of free memory (see M_MMAP_THRESHOLD in mallopt(3)). Nothing
    changes if ``MALLOC_TRIM_THRESHOLD_`` or a similar variable is set, or with another malloc.
    """
    torch.empty(_LARGEST, dtype=torch.uint8, device="cpu")


def keep_of_threads() -> None:
    """Make glibc keep empty heaps of threads, for processes that free all memory of a step at its end.

    glibc unmaps a heap only if the heap below has more than M_TOP_PAD left. The value set here is
    too large for that. Nothing changes if the environment configures malloc, or if the C library
    has no ``mallopt``.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        warm()  # first, because a call of mallopt ends the automatic adjustment of the threshold
        mallopt(_M_TOP_PAD, _OF_A_THREAD)

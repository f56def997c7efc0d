"""malloc, kept from giving back at the end of each step what the next one takes again.

glibc returns freed memory to the system where more than a threshold of it is free, and raises the threshold when a large block is
freed: after compiling, or some hours of anything, it is 64 MB. The process of a bundle is small and stays so, and then each step
takes its activations anew from the system, a page at a time (500 faults and a sixth of the time of a step of ``digits``).

Threads other than the first allocate from heaps of 64 MB each. Of these glibc unmaps one as soon as nothing in it is in use,
whatever the threshold.
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

    glibc then keeps up to 64 MB of free memory (mallopt(3) has it under M_MMAP_THRESHOLD). Where ``MALLOC_TRIM_THRESHOLD_``
    or its like is set, or there is another malloc, nothing changes.
    """
    torch.empty(_LARGEST, dtype=torch.uint8)


def keep_of_threads() -> None:
    """Have glibc keep heaps of threads of which nothing is in use, too, for those who free all that a step took at its end.

    It unmaps one only where the heap below has more than M_TOP_PAD left, which no heap can have then. Where the environment
    sets malloc up, or the C library has no ``mallopt``, nothing changes.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        warm()  # first: whoever calls mallopt is taken to know better, and the threshold stays where it is
        mallopt(_M_TOP_PAD, _OF_A_THREAD)

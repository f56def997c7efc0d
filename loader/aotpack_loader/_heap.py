"""malloc, kept from giving back at the end of each step what the next one takes again.

glibc returns freed memory to the system where more than a threshold of it is free, and raises the threshold when a large block is
freed: after compiling, or some hours of anything, it is 64 MB. The process of a bundle is small and stays so, and then each step
takes its activations anew from the system, a page at a time (500 faults and a sixth of the time of a step of ``digits``).
"""

from __future__ import annotations

import torch

_LARGEST = (32 << 20) - (64 << 10)
"""Bytes: the largest block from which glibc learns is 32 MB, malloc's own header and the alignment included."""


def warm() -> None:
    """Free a large block that was never touched, which costs two system calls.

    glibc then keeps up to 64 MB of free memory (mallopt(3) has it under M_MMAP_THRESHOLD). Where ``MALLOC_TRIM_THRESHOLD_``
    or its like is set, or there is another malloc, nothing changes.
    """
    torch.empty(_LARGEST, dtype=torch.uint8)

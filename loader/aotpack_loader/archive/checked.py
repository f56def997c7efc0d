"""Copies of parts of a blob, taken from the same bytes whose digest is checked."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from . import digest

if TYPE_CHECKING:
    from ..format.schema import Descriptor

_ALIGNMENT: Final = 64


def checked_ranges(chunks: Iterable[bytes], descriptor: Descriptor, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
    """Hash the bytes of a blob, and return private, writable copies of some ranges of it.

    Args:
        chunks: the bytes of the blob, in order.
        descriptor: the descriptor of the blob.
        ranges: bytes ``[start, stop)`` of the blob, sorted, without overlap.

    Raises:
        CorruptBundleError: the digest of the blob is another one.
    """
    copies = _buffers([stop - start for start, stop in ranges])
    hasher = hashlib.sha256()
    position = number = 0
    for chunk in chunks:
        hasher.update(chunk)
        end = position + len(chunk)
        while number < len(ranges) and ranges[number][0] < end:
            start, stop = ranges[number]
            first, last = max(start, position), min(stop, end)
            copies[number][first - start : last - start] = chunk[first - position : last - position]
            if stop > end:
                break
            number += 1
        position = end
    found = digest.PREFIX + hasher.hexdigest()
    if found != descriptor.digest:
        raise digest.bad_blob(descriptor, f"its content has digest {found}")
    return copies


def _buffers(sizes: Sequence[int]) -> list[memoryview]:
    """Return buffers of these sizes. Each begins at a multiple of 64 bytes, as in the blob."""
    starts = []
    total = 0
    for size in sizes:
        starts.append(total)
        total += size + -size % _ALIGNMENT
    memory = memoryview(mmap.mmap(-1, max(total, 1)))
    return [memory[start : start + size] for start, size in zip(starts, sizes, strict=True)]

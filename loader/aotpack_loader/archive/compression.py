"""Zstandard, the one compression of the format: deterministic on the way in, bounded on the way out.

Owns no descriptor: who calls knows the raw size a blob declares.
"""

from __future__ import annotations

from ..errors import CorruptBundleError

LEVEL = 19
MAX_RAW_BYTES = 1 << 31
"""A blob that declares more than this (2 GiB) is refused."""
_BLOCK_BYTES = 128 << 10
_MAX_RATIO = _BLOCK_BYTES // 4
"""Zstandard's own bound: a block gives 128 KiB at most and takes 4 bytes at least. A larger claim is a lie."""


def compress(data: bytes) -> bytes:
    """Return ``data`` as one zstd frame that records its size; equal input gives equal output."""
    import zstandard  # costs milliseconds: paid only by those who need it

    return zstandard.ZstdCompressor(level=LEVEL, write_content_size=True, threads=0).compress(data)


def decompress(data: bytes | memoryview, raw_size: int) -> bytes:
    """Return the ``raw_size`` bytes that ``data``, one zstd frame, holds.

    Raises:
        CorruptBundleError: not one whole frame of that size, or ``raw_size`` is beyond what is allowed or possible.
    """
    if not 0 <= raw_size <= MAX_RAW_BYTES:
        raise CorruptBundleError(f"A compressed blob declares {raw_size} bytes; the limit is {MAX_RAW_BYTES}.")
    if raw_size > len(data) * _MAX_RATIO + _BLOCK_BYTES:
        raise CorruptBundleError(f"A compressed blob of {len(data)} bytes cannot hold the {raw_size} it declares.")
    import zstandard

    try:
        # The frame's own claim decides what zstd allocates, so it is compared first.
        claimed = zstandard.get_frame_parameters(data).content_size
        if claimed != raw_size:
            raise CorruptBundleError(f"A compressed blob holds {claimed} bytes but declares {raw_size}.")
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=raw_size, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError, ValueError) as error:
        raise CorruptBundleError(f"A compressed blob cannot be decompressed: {error}.") from error
    if len(raw) != raw_size:
        raise CorruptBundleError(f"A compressed blob holds {len(raw)} bytes but declares {raw_size}.")
    return raw

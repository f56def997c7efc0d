"""Zstandard, the only compression of the format. Compression is deterministic, and decompression is bounded.

This module uses no descriptors. The caller passes the raw size that a blob declares.
"""

from __future__ import annotations

from ..errors import CorruptBundleError

LEVEL = 19
MAX_RAW_BYTES = 1 << 31
"""A blob that declares more than this (2 GiB) is refused."""
MAX_SMALL_DOCUMENT = 64 << 20
MAX_DOCUMENT_RATIO = 256
"""A compressed document may have 64 MiB, or so many times its compressed size. The graphs of models have 20 to 40 times."""
_BLOCK_BYTES = 128 << 10
_MAX_RATIO = _BLOCK_BYTES // 4
"""Zstandard's own bound: a block gives 128 KiB at most and takes 4 bytes at least. A larger claim is false."""


def compress(data: bytes) -> bytes:
    """Return ``data`` as one zstd frame that records its size; equal input gives equal output."""
    import zstandard  # takes milliseconds, so imported only when needed

    return zstandard.ZstdCompressor(level=LEVEL, write_content_size=True, threads=0).compress(data)


def decompress_document(data: bytes | memoryview, raw_size: int) -> bytes:
    """Return the text of a compressed document. A short blob cannot hold a text that fills the memory.

    Raises:
        CorruptBundleError: as :func:`decompress`, or the text would be too large.
    """
    limit = max(MAX_SMALL_DOCUMENT, MAX_DOCUMENT_RATIO * len(data))
    if raw_size > limit:
        raise CorruptBundleError(f"A document of {len(data)} compressed bytes declares {raw_size}; the limit is {limit}.")
    return decompress(data, raw_size)


def decompress(data: bytes | memoryview, raw_size: int) -> bytes:
    """Return the ``raw_size`` bytes of ``data``, which is one zstd frame.

    Raises:
        CorruptBundleError: it is not one complete frame of that size, or ``raw_size`` exceeds a
            limit.
    """
    if not 0 <= raw_size <= MAX_RAW_BYTES:
        raise CorruptBundleError(f"A compressed blob declares {raw_size} bytes; the limit is {MAX_RAW_BYTES}.")
    if raw_size > len(data) * _MAX_RATIO + _BLOCK_BYTES:
        raise CorruptBundleError(f"A compressed blob of {len(data)} bytes cannot hold the {raw_size} it declares.")
    import zstandard

    try:
        # zstd allocates the size that the frame declares, so that is compared first.
        claimed = zstandard.get_frame_parameters(data).content_size
        if claimed != raw_size:
            raise CorruptBundleError(f"A compressed blob holds {claimed} bytes but declares {raw_size}.")
        if not raw_size:
            return _nothing(data)
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=raw_size, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError, ValueError) as error:
        raise CorruptBundleError(f"A compressed blob cannot be decompressed: {error}.") from error
    if len(raw) != raw_size:
        raise CorruptBundleError(f"A compressed blob holds {len(raw)} bytes but declares {raw_size}.")
    return raw


def _nothing(data: bytes | memoryview) -> bytes:
    """Check a frame without content. The library does not look at what follows such a one."""
    import zstandard

    reader = zstandard.ZstdDecompressor().decompressobj()
    if reader.decompress(data) or not reader.eof or reader.unused_data:
        raise CorruptBundleError("A compressed blob of no bytes is not one frame.")
    return b""

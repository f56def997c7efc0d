"""Encodes the schema's types as JSON, and decodes them.

Encoding is canonical (sorted keys, no insignificant space), so equal documents have equal digests.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ..errors import CorruptBundleError, Problem
from .schema import Document

MAX_DOCUMENT_BYTES = 256 << 20
"""A document larger than this (256 MiB) is refused unread. One of the most items that are allowed has some 50 MB."""

MAX_ITEMS = 4_000_000
"""Of a document: its commas and opening brackets. Each item costs memory, however short its text is."""
_SEPARATORS = (b",", b"[", b"{")

T = TypeVar("T", bound=Document)

_decoders: dict[type[Document], msgspec.json.Decoder[Document]] = {}


def encode(document: Document) -> bytes:
    """Return the canonical JSON bytes of ``document``."""
    return msgspec.json.encode(document, order="sorted")


def decode(data: bytes | memoryview, kind: type[T], *, where: str) -> T:
    """Parse ``data`` as a ``kind``.

    Raises:
        CorruptBundleError: it is not JSON, or not of that type; names ``where`` and the JSON path
            within it.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise CorruptBundleError(f"The document {where} is {len(data)} bytes long; the limit is {MAX_DOCUMENT_BYTES}.")
    if has_too_many_items(data):
        raise CorruptBundleError(f"The document {where} has more than {MAX_ITEMS} items.", [Problem(where, f"{len(data)} bytes")])
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(data)  # type: ignore[return-value]
    except (msgspec.DecodeError, ValueError, RecursionError, MemoryError) as error:  # ValueError: an integer of too many digits
        raise CorruptBundleError(f"The document {where} is not a valid {kind.__name__}.", [Problem(where, str(error))]) from error


def has_too_many_items(data: bytes | memoryview) -> bool:
    """Whether the JSON text ``data`` has more than ``MAX_ITEMS`` items, from its bytes alone."""
    if len(data) <= MAX_ITEMS:
        return False
    text = bytes(data)
    return sum(map(text.count, _SEPARATORS)) > MAX_ITEMS

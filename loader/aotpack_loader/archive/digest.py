"""Computes, formats and compares digests of blobs, without any input or output."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ..errors import CorruptBundleError, Problem

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

    from ..format.schema import Descriptor

PREFIX = "sha256:"
_HEX_DIGITS = frozenset("0123456789abcdef")


def sha256(data: Buffer) -> str:
    """Return the digest of ``data``, as ``sha256:<64 hex digits>``."""
    return PREFIX + hashlib.sha256(data).hexdigest()


def is_digest(text: object) -> bool:
    """Whether ``text`` is a digest in the only form that bundles use."""
    return isinstance(text, str) and len(text) == 71 and text.startswith(PREFIX) and _HEX_DIGITS.issuperset(text[len(PREFIX) :])


def hex_part(digest: str) -> str:
    """Return the 64 hex digits of ``digest``, the only part that is ever used as a file name.

    Raises:
        CorruptBundleError: not a sha256 digest.
    """
    # The schema's pattern accepts a trailing newline, but a file name must not have one.
    if not is_digest(digest):
        raise CorruptBundleError(f"Not a sha256 digest: {digest!r}.")
    return digest[len(PREFIX) :]


def check_size(size: int, descriptor: Descriptor) -> None:
    """Raise :class:`CorruptBundleError` unless a blob of ``size`` bytes has the size its descriptor states."""
    if size != descriptor.size:
        raise bad_blob(descriptor, f"has {size} bytes, expected {descriptor.size}")


def check(data: memoryview | bytes, descriptor: Descriptor) -> None:
    """Raise :class:`CorruptBundleError` unless ``data`` has the size, then the digest, that its descriptor states."""
    check_size(len(data), descriptor)
    found = sha256(data)
    if found != descriptor.digest:
        raise bad_blob(descriptor, f"its content has digest {found}")


def bad_blob(descriptor: Descriptor, message: str) -> CorruptBundleError:
    """Return the error for a blob that differs from ``descriptor``; names the blob."""
    return CorruptBundleError(
        f"A blob of type {descriptor.media_type} is damaged.",
        [Problem(descriptor.digest, message)],
        hint="Fetch or build the bundle again.",
    )

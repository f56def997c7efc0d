"""The documents of a signature: an in-toto statement, in a DSSE envelope, in a Sigstore bundle.

They are those that cosign and OpenSSF Model Signing write. This module reads and writes them. It
checks no signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Raw, Struct, UnsetType

from ..archive.attachments import IN_TOTO, SIGSTORE_BUNDLE
from ..errors import CorruptBundleError, Problem

STATEMENT: Final = "https://in-toto.io/Statement/v1"
SIGNED: Final = "https://sigstore.dev/cosign/sign/v1"
"""The predicate of a signature that says no more than who signed; cosign's."""
MAX_SIGNATURE_BYTES: Final = 1 << 20
MAX_SIGNATURES: Final = 16
"""Signatures of one envelope. Writers make one."""


class Subject(Struct, frozen=True):
    """What a statement is about: digests by algorithm, in hexadecimal."""

    digest: dict[str, str]
    name: str = ""


class Statement(Struct, frozen=True, rename={"type": "_type", "predicate_type": "predicateType"}):
    """An in-toto statement, version 1."""

    type: str
    subject: list[Subject]
    predicate_type: str
    predicate: Raw | UnsetType = msgspec.UNSET


class Signature(Struct, frozen=True):
    """A signature over :func:`pae`. The identifier of its key is a hint only."""

    sig: bytes
    keyid: str | None = ""


class Envelope(Struct, frozen=True, rename="camel"):
    """A DSSE envelope."""

    payload: bytes
    payload_type: str
    signatures: list[Signature]


class KeyHint(Struct, frozen=True):
    """Which key verifies a signature: a hash of the public key. A hint, not proof."""

    hint: str | None = ""


class Material(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a verifier needs besides the signature. ``certificate`` is Sigstore's keyless form."""

    public_key: KeyHint | UnsetType = msgspec.UNSET
    certificate: Raw | UnsetType = msgspec.UNSET
    tlog_entries: list[Raw] | UnsetType = msgspec.UNSET


class SigstoreBundle(Struct, frozen=True, rename="camel"):
    """A Sigstore bundle, of the media type :data:`~..archive.attachments.SIGSTORE_BUNDLE`."""

    media_type: str
    verification_material: Material
    dsse_envelope: Envelope


def pae(payload: bytes, payload_type: str = IN_TOTO) -> bytes:
    """Return the bytes that DSSE signs: the pre-authentication encoding of type and payload."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def statement(subjects: Sequence[Subject], predicate_type: str, predicate: object) -> bytes:
    """Return the canonical JSON of a statement."""
    made = Statement(STATEMENT, list(subjects), predicate_type, Raw(msgspec.json.encode(predicate, order="sorted")))
    return msgspec.json.encode(made, order="sorted")


def sigstore_bundle(payload: bytes, signature: bytes, hint: str) -> bytes:
    """Return a Sigstore bundle of a statement that one key signed."""
    envelope = Envelope(payload, IN_TOTO, [Signature(signature)])
    material = Material(KeyHint(hint), tlog_entries=[])
    return msgspec.json.encode(SigstoreBundle(SIGSTORE_BUNDLE, material, envelope), order="sorted")


def read_bundle(data: bytes | memoryview, where: str) -> SigstoreBundle:
    """Decode a Sigstore bundle.

    Raises:
        CorruptBundleError: it is none, or too large.
    """
    if len(data) > MAX_SIGNATURE_BYTES:
        raise _bad(where, f"it has {len(data)} bytes; the limit is {MAX_SIGNATURE_BYTES}")
    found = _decode(data, SigstoreBundle, where)
    if found.media_type != SIGSTORE_BUNDLE:
        raise _bad(where, f"it is a {found.media_type!r}, expected {SIGSTORE_BUNDLE!r}")
    if len(found.dsse_envelope.signatures) > MAX_SIGNATURES:
        raise _bad(where, f"it has {len(found.dsse_envelope.signatures)} signatures; the limit is {MAX_SIGNATURES}")
    return found


def read_statement(envelope: Envelope, where: str) -> Statement:
    """Decode the statement of an envelope, after its signature was checked.

    Raises:
        CorruptBundleError: it is no in-toto statement.
    """
    if envelope.payload_type != IN_TOTO:
        raise _bad(where, f"its payload is a {envelope.payload_type!r}, expected {IN_TOTO!r}")
    return read_plain_statement(envelope.payload, where)


def read_plain_statement(data: bytes | memoryview, where: str) -> Statement:
    """Decode a statement without a signature.

    Raises:
        CorruptBundleError: it is no in-toto statement.
    """
    found = _decode(data, Statement, where)
    if found.type != STATEMENT:
        raise _bad(where, f"its statement is a {found.type!r}, expected {STATEMENT!r}")
    return found


T = TypeVar("T", bound=Struct)


def _decode(data: bytes | memoryview, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(where, f"it is no {kind.__name__}: {error}") from error


def _bad(where: str, message: str) -> CorruptBundleError:
    return CorruptBundleError("A signature cannot be read.", [Problem(where, message)])

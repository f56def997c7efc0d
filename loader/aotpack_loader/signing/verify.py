"""Who signed a bundle: checks the signatures among its attachments against given keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ..archive.attachments import SIGSTORE_BUNDLE
from ..archive.digest import hex_part
from ..errors import AotpackError, Problem
from . import documents

if TYPE_CHECKING:
    from ..archive.attachments import Attached
    from .keys import PublicKey

_MAX_TRIES: Final = 16_384
"""Signatures that are checked, each with each key: a hostile bundle with many is refused in bounded time."""
_MAX_HASHED: Final = 512 << 20
"""Bytes that these checks hash."""


class Verdict(Struct, frozen=True):
    """The key that signed a bundle, or None with a reason that follows "because"."""

    key: PublicKey | None
    reason: str
    problems: list[Problem] = []


def signer(bundle: Attached, keys: Sequence[PublicKey]) -> Verdict:
    """Return the first of ``keys`` that signed the bundle.

    Only the documents of signatures are read: the bundle digest stands for everything else.
    """
    if not bundle.has_attachments:
        return Verdict(None, "it is not signed")
    if not keys:
        return Verdict(None, "no key is trusted")
    problems: list[Problem] = []
    count = tries = hashed = 0
    for where, found in _signatures(bundle, problems):
        count += 1
        hint = found.verification_material.public_key
        if not isinstance(hint, documents.KeyHint):
            problems.append(Problem(where, "it is not made with a key"))
            continue
        for key in keys:
            if not key.may_match(hint):
                continue
            signatures = len(found.dsse_envelope.signatures)
            tries += signatures
            hashed += signatures * len(found.dsse_envelope.payload)
            if tries > _MAX_TRIES or hashed > _MAX_HASHED:
                return Verdict(None, "it has too many signatures", problems)
            if key.verifies(found.dsse_envelope):
                if _is_about(found, bundle.digest, where, problems):
                    return Verdict(key, f"the key {key.name!r} signed it", problems)
                break
        else:
            problems.append(Problem(where, f"no given key made it (its key: {hint.hint or 'not named'})"))
    return Verdict(None, "no trusted key signed it" if count else "it is not signed", problems)


def _signatures(bundle: Attached, problems: list[Problem]) -> Iterator[tuple[str, documents.SigstoreBundle]]:
    attachments, damaged = bundle.attachments()
    problems += damaged
    seen: set[str] = set()
    for attachment in attachments:
        if attachment.kind != SIGSTORE_BUNDLE or attachment.layer.digest in seen:
            continue
        seen.add(attachment.layer.digest)
        where = attachment.descriptor.digest
        try:
            if attachment.layer.size > documents.MAX_SIGNATURE_BYTES:
                problems.append(Problem(where, f"its document has {attachment.layer.size} bytes"))
                continue
            yield where, documents.read_bundle(bundle.attached(attachment), where)
        except AotpackError as error:
            problems += error.problems or [Problem(where, error.summary)]


def _is_about(found: documents.SigstoreBundle, digest: str, where: str, problems: list[Problem]) -> bool:
    """Whether a checked signature is one of the bundle: of the right kind, and of its digest."""
    try:
        statement = documents.read_statement(found.dsse_envelope, where)
    except AotpackError as error:
        problems += error.problems
        return False
    if statement.predicate_type != documents.SIGNED:
        return False  # a statement about the bundle, such as provenance, does not approve it
    if any(subject.digest.get("sha256") == hex_part(digest) for subject in statement.subject):
        return True
    problems.append(Problem(where, "it is the signature of another bundle"))
    return False

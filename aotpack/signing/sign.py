"""Makes keys and signs bundles: a statement about the bundle digest, attached to the bundle."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from aotpack_loader.archive.attachments import IN_TOTO, SIGSTORE_BUNDLE, NewAttachment, make
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.digest import hex_part
from aotpack_loader.errors import AotpackError, CorruptBundleError, Problem
from aotpack_loader.format.schema import Descriptor
from aotpack_loader.signing import documents
from aotpack_loader.signing.keys import PrivateKey, PublicKey

from ..writer.attach import attach

CONTENT = "dev.sigstore.bundle.content"
PREDICATE = "dev.sigstore.bundle.predicateType"
"""Annotations of a Sigstore bundle in a registry. cosign selects by them."""


class Signed(NamedTuple):
    """What was signed: the bundle digest, the key, and the digest of the attachment's manifest.

    ``statements`` are the manifests of statements (provenance) that were signed too.
    """

    digest: str
    key: PublicKey
    attachment: str
    statements: tuple[str, ...] = ()


def sign(path: str | os.PathLike[str], key: PrivateKey, *, statements: bool = False) -> Signed:
    """Sign the bundle at ``path`` and attach the signature.

    The bundle's documents are read and checked. Its weights are not, because the statement is
    about digests: verify a bundle that others gave you before you sign it. With ``statements`` the
    attached statements about the bundle, such as its provenance, get signed copies.

    Raises:
        BundleError: it is no valid bundle, or a statement is damaged or about another bundle.
        BuildError: it cannot be written.
    """
    with Bundle.open(path) as bundle:
        subject, name = bundle.index, bundle.program.name
        plain = _statements(bundle) if statements else []
    payload = documents.statement([about(subject, name)], documents.SIGNED, {})
    new = signed_attachment(subject, payload, documents.SIGNED, key)
    copies = [signed_attachment(subject, payload, predicate, key) for payload, predicate in plain]
    attach(path, [new, *copies])
    return Signed(subject.digest, key.public, new.descriptor.digest, tuple(each.descriptor.digest for each in copies))


def _statements(bundle: Bundle) -> list[tuple[bytes, str]]:
    """Return the unsigned statements about a bundle, each with its predicate type."""
    found = []
    for attachment in bundle.attachments()[0]:
        if attachment.kind != IN_TOTO:
            continue
        where = attachment.descriptor.digest
        data = bytes(bundle.attached(attachment))
        statement = documents.read_plain_statement(data, where)
        if all(each.digest.get("sha256") != hex_part(bundle.digest) for each in statement.subject):
            raise CorruptBundleError("An attached statement is not signed.", [Problem(where, "it is about another bundle")])
        if statement.predicate_type == documents.SIGNED:
            continue  # this would be the signature itself
        found.append((data, statement.predicate_type))
    return found


def about(subject: Descriptor, name: str) -> documents.Subject:
    """Return the subject of a statement about a bundle."""
    return documents.Subject({"sha256": hex_part(subject.digest)}, name)


def signed_attachment(subject: Descriptor, payload: bytes, predicate: str, key: PrivateKey) -> NewAttachment:
    """Return the attachment of a statement with its signature."""
    document = documents.sigstore_bundle(payload, key.sign(payload), key.public.hint)
    return make(subject, SIGSTORE_BUNDLE, document, {CONTENT: "dsse-envelope", PREDICATE: predicate})


def write_keys(kind: str, out: Path, passphrase: bytes | None) -> tuple[PublicKey, Path, Path]:
    """Make a key pair: ``out`` holds the private key, ``out`` with ``.pub`` the public one.

    Raises:
        AotpackError: one of the files exists, or cannot be written.
    """
    key = PrivateKey.generate(kind)
    public = out.with_name(re.sub(r"\.(pem|key)$", "", out.name) + ".pub")
    for path in (out, public):
        if path.exists():
            raise AotpackError(f"{path} exists; a key is never replaced.", hint="Choose another name: --out NAME.")
    _create(out, key.pem(passphrase), 0o600)
    _create(public, key.public.pem, 0o644)
    return key.public, out, public


def _create(path: Path, data: bytes, mode: int) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError as error:
        raise AotpackError(f"The key cannot be written to {path}: {error.strerror}.") from error
    with open(handle, "wb") as file:
        file.write(data)

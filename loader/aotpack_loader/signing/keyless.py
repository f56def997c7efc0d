"""Keyless signatures: made with a certificate of Sigstore for an identity, by the library ``sigstore``.

Only this module imports that library. The certificate, the transparency log's entry and its time are
all in the bundle, so a check needs no network where the trusted root is known: Sigstore's own, as the
library has it, or a file with that of a private Sigstore.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Raw, Struct

from ..archive.attachments import SIGSTORE_BUNDLE
from ..archive.digest import hex_part
from ..errors import AotpackError, Problem, TrustError
from . import documents

try:
    from sigstore.errors import Error as SigstoreError
    from sigstore.models import Bundle as SignedBundle
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier
    from sigstore.verify.policy import Identity
except ImportError as error:
    raise TrustError(
        f"Keyless signatures need the library sigstore: {error}.",
        hint="Install it: pip install 'aotpack-loader[sigstore]'.",
    ) from error

if TYPE_CHECKING:
    from ..archive.attachments import Attached

_MAX_TRIES = 16
"""Certificates of one bundle that are checked. Each takes milliseconds."""


class KeylessVerdict(Struct, frozen=True):
    """Whether an identity signed the bundle, and why (or why not)."""

    verified: bool
    reason: str
    problems: list[Problem] = []


def read_root(path: Path | None, *, offline: bool) -> Verifier:
    """Return what checks signatures: against the trusted root in a file, or against Sigstore's own.

    Args:
        path: the trusted root of a private Sigstore, in Sigstore's JSON. None: Sigstore's own.
        offline: take Sigstore's own root as it was last seen on this machine, or as it came with the
            library. False: refresh it over the network.

    Raises:
        AotpackError: the file is no trusted root, or Sigstore's cannot be had.
    """
    try:
        if path is not None:
            if not path.is_file():  # opening a FIFO would wait
                raise AotpackError(f"The trusted root {path} is no file.")
            return Verifier(trusted_root=TrustedRoot.from_file(str(path)))
        return Verifier.production(offline=offline)
    except OSError as error:
        raise AotpackError(f"The trusted root {path} cannot be read: {error.strerror or error}.") from error
    except (SigstoreError, ValueError) as error:
        source = path or "of Sigstore"
        raise AotpackError(f"The trusted root {source} cannot be used: {_line(error)}") from error


def identity_signed(bundle: Attached, identity: str, issuer: str, verifier: Verifier) -> KeylessVerdict:
    """Return whether ``identity`` signed the bundle, as ``issuer`` (the URL of an identity provider) says.

    The certificate must lead to the trusted root and be in a certificate log, and the transparency log
    must have an entry of the signature from the time in which the certificate was valid.
    """
    attachments, problems = bundle.attachments()
    policy = Identity(identity=identity, issuer=issuer)
    tries = 0
    for attachment in attachments:
        if attachment.kind != SIGSTORE_BUNDLE:
            continue
        where = attachment.descriptor.digest
        try:
            data = bytes(bundle.attached(attachment))
            found = documents.read_bundle(data, where)
        except AotpackError as error:
            problems += error.problems or [Problem(where, error.summary)]
            continue
        if not isinstance(found.verification_material.certificate, Raw):
            problems.append(Problem(where, "it is made with a key, not with a certificate"))
            continue
        tries += 1
        if tries > _MAX_TRIES:
            return KeylessVerdict(False, "it has too many signatures", problems)
        if not (wrong := list(_problems(data, bundle.digest, where, verifier, policy))):
            return KeylessVerdict(True, f"{identity} signed it, says {issuer}", problems)
        problems += wrong
    return KeylessVerdict(False, f"no signature of {identity} by {issuer} was found", problems)


def _problems(data: bytes, digest: str, where: str, verifier: Verifier, policy: Identity) -> Iterator[Problem]:
    """What is wrong with one signature."""
    try:
        kind, payload = verifier.verify_dsse(SignedBundle.from_json(data), policy)
    except Exception as error:
        yield Problem(where, f"sigstore refuses it: {_line(error)}")
        return
    try:
        statement = documents.read_statement(documents.Envelope(payload, kind, []), where)
    except AotpackError as error:
        yield from error.problems
        return
    if statement.predicate_type != documents.SIGNED:
        yield Problem(where, f"it is a statement of the type {statement.predicate_type!r}, which approves nothing")
    elif all(subject.digest.get("sha256") != hex_part(digest) for subject in statement.subject):
        yield Problem(where, "it is the signature of another bundle")


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text[:200]}{'…' if len(text) > 200 else ''}"

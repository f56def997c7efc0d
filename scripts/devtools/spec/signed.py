"""Signed vectors: the bundle ``scale`` with attachments, and whether a reader that trusts a key believes them.

Each has the bundle, the public key ``key.pub`` and ``expect.json``. Keys are made when a vector is
written, and the private ones are not kept.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from aotpack.signing.sign import about, signed_attachment
from aotpack.writer.attach import attach
from aotpack_loader.archive.attachments import CYCLONEDX, IN_TOTO, SIGSTORE_BUNDLE, NewAttachment, make
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.format.schema import Descriptor
from aotpack_loader.signing import documents
from aotpack_loader.signing.keys import PrivateKey, public_key
from aotpack_loader.signing.verify import signer
from devtools.paths import ROOT

from .replay import BUNDLE, EXPECT, MismatchError

VECTORS = ROOT / "spec/vectors/v1"
KEY = "key.pub"
_SLSA = "https://slsa.dev/provenance/v1"


class Signed(NamedTuple):
    """A signed vector: what it shows, the kind of key, whether the key's signature is believed, and what is attached."""

    about: str
    kind: str
    believed: bool
    attached: Callable[[Descriptor, PrivateKey], list[NewAttachment]]


def _statement(subject: Descriptor, predicate: str = documents.SIGNED) -> bytes:
    return documents.statement([about(subject, "scale")], predicate, {})


def _good(subject: Descriptor, key: PrivateKey) -> list[NewAttachment]:
    return [signed_attachment(subject, _statement(subject), documents.SIGNED, key)]


def _among_others(subject: Descriptor, key: PrivateKey) -> list[NewAttachment]:
    unsigned = [make(subject, IN_TOTO, _statement(subject, _SLSA)), make(subject, CYCLONEDX, b"{}")]
    broken = make(subject, SIGSTORE_BUNDLE, b"not a signature")
    return [*unsigned, broken, *_good(subject, PrivateKey.generate("ed25519")), *_good(subject, key)]


def _provenance(subject: Descriptor, key: PrivateKey) -> list[NewAttachment]:
    return [signed_attachment(subject, _statement(subject, _SLSA), _SLSA, key)]


def _of_another(subject: Descriptor, key: PrivateKey) -> list[NewAttachment]:
    other = Descriptor(subject.media_type, "sha256:" + "0" * 64, subject.size)
    return [signed_attachment(subject, _statement(other), documents.SIGNED, key)]


def _changed(subject: Descriptor, key: PrivateKey) -> list[NewAttachment]:
    """The signature is of another payload than the envelope has."""
    document = documents.sigstore_bundle(_statement(subject), key.sign(b"{}"), key.public.hint)
    return [make(subject, SIGSTORE_BUNDLE, document)]


def _of_another_key(subject: Descriptor, key: PrivateKey) -> list[NewAttachment]:
    """The hint names the key, and another one made the signature."""
    payload = _statement(subject)
    made = PrivateKey.generate("ed25519").sign(payload)
    return [make(subject, SIGSTORE_BUNDLE, documents.sigstore_bundle(payload, made, key.public.hint))]


SIGNED = {
    "ed25519": Signed("a signature with Ed25519", "ed25519", True, _good),
    "ecdsa_p256": Signed("a signature with ECDSA on P-256", "ecdsa-p256", True, _good),
    "among_others": Signed("a signature beside others, unknown and damaged attachments", "ed25519", True, _among_others),
    "provenance_alone": Signed("signed provenance approves nothing", "ed25519", False, _provenance),
    "of_another_bundle": Signed("a good signature of another bundle", "ed25519", False, _of_another),
    "changed_payload": Signed("a signature of another payload", "ed25519", False, _changed),
    "false_hint": Signed("a signature of another key with this key's hint", "ed25519", False, _of_another_key),
}


def write_signed(case: Signed, folder: Path) -> None:
    """Attach what the case says to a copy of ``scale``."""
    shutil.copyfile(VECTORS / "valid/scale" / BUNDLE, folder / BUNDLE)
    key = PrivateKey.generate(case.kind)
    with Bundle.open(folder / BUNDLE) as bundle:
        subject = bundle.index
    attach(folder / BUNDLE, case.attached(subject, key))
    (folder / KEY).write_bytes(key.public.pem)
    expect = {
        "about": case.about,
        "bundle": subject.digest,
        "file": "sha256:" + hashlib.sha256((folder / BUNDLE).read_bytes()).hexdigest(),
        "key": key.public.id,
        "believed": case.believed,
    }
    (folder / EXPECT).write_text(json.dumps(expect, indent=1) + "\n")


def replay_signed(folder: Path) -> None:
    """Check whether the key's signature is believed, and that all of the bundle is as it was."""
    expect = json.loads((folder / EXPECT).read_text())
    file = "sha256:" + hashlib.sha256((folder / BUNDLE).read_bytes()).hexdigest()
    key = public_key((folder / KEY).read_bytes(), KEY)
    with Bundle.open(folder / BUNDLE) as bundle:
        bundle.verify()
        verdict = signer(bundle, [key])
        seen = {"bundle": bundle.digest, "file": file, "key": key.id, "believed": verdict.key is not None}
    wrong = {name: value for name, value in seen.items() if expect[name] != value}
    if wrong:
        raise MismatchError(f"{folder.name}: {wrong}, expected {expect}; {verdict.reason}")

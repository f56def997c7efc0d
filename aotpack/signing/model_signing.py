"""Detached signatures in the form of OpenSSF Model Signing (version 1.0, keys).

Such a signature lists the files of a model with their digests. For an unpacked bundle the digests
are the names of its blobs, so making one reads only documents. For a bundle file it is the digest
of the whole file, which is read once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from msgspec import Raw, Struct, json

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.digest import hex_part
from aotpack_loader.errors import AotpackError, CorruptBundleError, Problem
from aotpack_loader.signing import documents
from aotpack_loader.signing.keys import PrivateKey, PublicKey

from .files import read_small

PREDICATE: Final = "https://model_signing/signature/v1.0"
_WHOLE: Final = "."
"""What Model Signing calls the one file of a model that is a file."""
_IGNORED: Final = [".git", ".gitattributes", ".github", ".gitignore"]
_KIND: Final = "ecdsa-p256"


class Resource(Struct, frozen=True):
    """One file of a model: its path, and its digest in hexadecimal."""

    name: str
    digest: str
    algorithm: Literal["sha256"]


class Serialization(Struct, frozen=True):
    """How the files were listed."""

    method: Literal["files"]
    hash_type: Literal["sha256"] = "sha256"
    allow_symlinks: bool = False
    ignore_paths: list[str] = []


class Predicate(Struct, frozen=True):
    """The predicate of a signature."""

    serialization: Serialization
    resources: list[Resource]


def sign_detached(path: str | os.PathLike[str], key: PrivateKey) -> bytes:
    """Return a signature of the bundle at ``path`` that ``model_signing verify key`` accepts.

    Raises:
        AotpackError: the key is not ECDSA on P-256, which Model Signing needs.
        BundleError: ``path`` is no valid bundle.
    """
    _require_kind(key.public)
    resources = sorted(_resources(Path(path), from_names=True), key=lambda each: each.name)
    root = hashlib.sha256(b"".join(bytes.fromhex(each.digest) for each in resources)).hexdigest()
    predicate = Predicate(Serialization("files", ignore_paths=_IGNORED), resources)
    subject = documents.Subject({"sha256": root}, Path(os.path.abspath(path)).name)
    payload = documents.statement([subject], PREDICATE, predicate)
    return documents.sigstore_bundle(payload, key.sign(payload), key.public.model_signing_hint)


def verify_detached(path: str | os.PathLike[str], signature: Path, key: PublicKey) -> None:
    """Check a signature of Model Signing over the bundle at ``path``. Every file is read and hashed.

    Raises:
        AotpackError: the key is of another kind, or the file cannot be read.
        CorruptBundleError: the signature is of another key, or a file differs from it.
    """
    _require_kind(key)
    data = read_small(signature, "signature")
    where = os.fspath(signature)
    found = documents.read_bundle(data, where)
    hint = found.verification_material.public_key
    if not isinstance(hint, documents.KeyHint) or not key.may_match(hint) or not key.verifies(found.dsse_envelope):
        raise CorruptBundleError("The signature is not of this key.", [Problem(where, f"expected the key {key.id}")])
    predicate = _predicate(documents.read_statement(found.dsse_envelope, where), where)
    ignored = [where, *predicate.serialization.ignore_paths]
    expected = {each.name: each.digest for each in predicate.resources}
    present = {each.name: each.digest for each in _resources(Path(path), ignored=ignored)}
    problems = [Problem(name, "is missing") for name in sorted(expected.keys() - present.keys())]
    problems += [Problem(name, "is not in the signature") for name in sorted(present.keys() - expected.keys())]
    problems += [
        Problem(name, f"has sha256 {present[name]}, expected {expected[name]}")
        for name in sorted(expected.keys() & present.keys())
        if present[name] != expected[name]
    ]
    if problems:
        raise CorruptBundleError("The bundle is not the one that was signed.", problems)


def _predicate(statement: documents.Statement, where: str) -> Predicate:
    if statement.predicate_type != PREDICATE:
        raise CorruptBundleError(
            "The signature is of another kind.", [Problem(where, f"it is a {statement.predicate_type!r}, expected {PREDICATE!r}")]
        )
    try:
        found = json.decode(statement.predicate if isinstance(statement.predicate, Raw) else b"{}", type=Predicate)
        root = hashlib.sha256(b"".join(bytes.fromhex(each.digest) for each in found.resources)).hexdigest()
    except ValueError as error:
        raise CorruptBundleError("The signature cannot be read.", [Problem(where, str(error))]) from error
    if [subject.digest.get("sha256") for subject in statement.subject] != [root]:
        raise CorruptBundleError("The signature contradicts itself.", [Problem(where, "its files do not make its digest")])
    return found


def _resources(path: Path, *, ignored: Iterable[str] = (), from_names: bool = False) -> Iterable[Resource]:
    """Yield the files of a bundle. With ``from_names`` a blob's digest is taken from its name, after opening the bundle."""
    Bundle.open(path).close()
    if path.is_file():
        yield Resource(_WHOLE, _hash(path), "sha256")
        return
    skipped = {(path / name).resolve() for name in _IGNORED} | {Path(name).resolve() for name in ignored}
    for file in sorted(path.rglob("*")):
        if not file.is_file() or not skipped.isdisjoint([file.resolve(), *file.resolve().parents]):
            continue
        name = file.relative_to(path).as_posix()
        folder, _, last = name.rpartition("/")
        known = from_names and folder == "blobs/sha256" and len(last) == 64
        yield Resource(name, hex_part(f"sha256:{last}") if known else _hash(file), "sha256")


def _hash(path: Path) -> str:
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_kind(key: PublicKey) -> None:
    if key.kind != _KIND:
        raise AotpackError(
            f"OpenSSF Model Signing does not know keys of {key.kind}.", hint=f"Make one: aotpack keygen --kind {_KIND}."
        )

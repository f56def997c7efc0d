"""Shows the attachments of a bundle: what each is, and whose signature it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.table import Table

from aotpack_loader.archive.attachments import CYCLONEDX, IN_TOTO, SIGSTORE_BUNDLE, Attachment
from aotpack_loader.errors import AotpackError

from .console import plain, size_text

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle
    from aotpack_loader.signing.keys import PublicKey

_PREDICATE: Final = "dev.sigstore.bundle.predicateType"
_MAX_CHECKED: Final = 64
"""Attachments of one bundle whose signatures are checked, so that a hostile one is listed in bounded time."""
_KINDS: Final = {CYCLONEDX: "bill of materials", IN_TOTO: "statement", SIGSTORE_BUNDLE: "signed statement"}
_PREDICATES: Final = {"https://sigstore.dev/cosign/sign/v1": "signature", "https://slsa.dev/provenance/v1": "provenance"}


@dataclass(frozen=True)
class Row:
    """One attachment. ``signer`` is a trusted key, or says why there is none."""

    type: str
    artifact_type: str
    predicate: str
    digest: str
    size: int
    signer: str
    trusted: bool


def rows(bundle: Bundle) -> list[Row]:
    """Return the attachments of a bundle. Signatures are checked against the keys that this user trusts."""
    found, problems = bundle.attachments()
    keys, trouble = _trusted_keys(found)
    listed = [_row(bundle, each, keys if number < _MAX_CHECKED else None, trouble) for number, each in enumerate(found)]
    return listed + [Row("damaged", "", "", problem.where, 0, problem.message, False) for problem in problems]


def table(listed: Sequence[Row]) -> Table:
    """Return them as a table."""
    shown = Table("attachment", "size", "signer", "digest", box=None, pad_edge=False, header_style="bold")
    shown.columns[1].justify = "right"
    for row in listed:
        signer = plain(row.signer, "green" if row.trusted else "yellow")
        shown.add_row(plain(row.type), size_text(row.size), signer, row.digest.removeprefix("sha256:")[:12])
    return shown


def _trusted_keys(found: Sequence[Attachment]) -> tuple[list[PublicKey], str]:
    """The trusted keys, and why they cannot be read. Without a signature the library is not needed."""
    if all(each.kind != SIGSTORE_BUNDLE for each in found):
        return [], ""
    try:
        from aotpack_loader.signing import key_store

        return (key_store.trusted_keys() if key_store.may_have_keys() else []), ""
    except AotpackError as error:
        return [], error.summary


def _row(bundle: Bundle, each: Attachment, keys: Sequence[PublicKey] | None, trouble: str) -> Row:
    """One attachment. Without ``keys`` its signature is not checked."""
    predicate = each.manifest.annotations.get(_PREDICATE, "")
    signer, trusted = "none: not signed", False
    if each.kind == SIGSTORE_BUNDLE and keys is None:
        signer = f"not checked: there are more than {_MAX_CHECKED} attachments"
    elif each.kind == SIGSTORE_BUNDLE and keys is not None:
        signer, predicate, trusted = _signer(bundle, each, keys, trouble)
    kind = _PREDICATES.get(predicate) or _KINDS.get(each.kind, _printable(each.kind))
    return Row(kind, _printable(each.kind), _printable(predicate), each.descriptor.digest, each.layer.size, signer, trusted)


def _signer(bundle: Bundle, each: Attachment, keys: Sequence[PublicKey], trouble: str) -> tuple[str, str, bool]:
    """Who signed an attachment, its predicate type, and whether that is a trusted key and about this bundle."""
    from aotpack_loader.archive.digest import hex_part
    from aotpack_loader.signing import documents

    where = each.descriptor.digest
    try:
        document = documents.read_bundle(bundle.attached(each), where)
        statement = documents.read_statement(document.dsse_envelope, where)
    except AotpackError as error:
        return f"unreadable: {error.problems[0] if error.problems else error.summary}", "", False
    predicate = statement.predicate_type
    if all(subject.digest.get("sha256") != hex_part(bundle.digest) for subject in statement.subject):
        return "none: it is about another bundle", predicate, False
    hint = document.verification_material.public_key
    if not isinstance(hint, documents.KeyHint):
        return "a certificate (not checked: aotpack verify --identity)", predicate, False
    for key in keys:
        if key.may_match(hint) and key.verifies(document.dsse_envelope):
            return f"{key.name}  {key.id}", predicate, True
    return trouble or f"no trusted key (its key: {_printable(hint.hint or 'not named')})", predicate, False


def _printable(text: str) -> str:
    """Return what a stranger wrote without control characters, which a terminal would obey."""
    return "".join(character for character in text[:200] if character.isprintable())

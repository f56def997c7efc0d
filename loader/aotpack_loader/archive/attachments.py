"""Attachments: documents about a bundle, stored beside it, such as signatures, provenance and bills of materials.

Each is an OCI image manifest of one layer whose ``subject`` is the bundle index. ``index.json``
lists it after the bundle, and a registry keeps it as a referrer. The bundle digest does not cover
attachments, so a reader believes one only for a signature in it. This module knows no signatures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from msgspec import Struct

from ..errors import AotpackError, CorruptBundleError, Problem
from ..format.codec import decode, encode
from ..format.media_types import OCI_EMPTY, OCI_MANIFEST
from ..format.schema import Descriptor, Document
from . import digest as digests
from .layout import Layout

MAX_MANIFEST_BYTES: Final = 4 << 20
MAX_LAYER_BYTES: Final = 64 << 20
"""An attachment is a document. Larger ones are refused unread."""
MAX_ATTACHMENTS: Final = 1024
MAX_ALL_MANIFESTS: Final = 32 << 20
"""Bytes of the manifests of all attachments of a bundle."""
MAX_ALL_BYTES: Final = 256 << 20
"""Of the attachments that are pulled with a bundle."""

SIGSTORE_BUNDLE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
"""A signed statement: a signature of the bundle, or signed provenance."""
IN_TOTO: Final = "application/vnd.in-toto+json"
"""An unsigned in-toto statement: provenance."""
CYCLONEDX: Final = "application/vnd.cyclonedx+json"

_EMPTY: Final = b"{}"


class AttachmentManifest(
    Document,
    frozen=True,
    rename={"schema_version": "schemaVersion", "media_type": "mediaType", "artifact_type": "artifactType"},
):
    """The manifest of an attachment, of OCI's image-spec 1.1."""

    schema_version: Literal[2]
    media_type: Literal["application/vnd.oci.image.manifest.v1+json"]
    config: Descriptor
    layers: list[Descriptor]
    artifact_type: str = ""
    subject: Descriptor | None = None
    annotations: dict[str, str] = {}


class Attachment(Struct, frozen=True):
    """One attachment: the descriptor of its manifest, and the manifest."""

    descriptor: Descriptor
    manifest: AttachmentManifest

    @property
    def kind(self) -> str:
        """Its ``artifactType``, such as :data:`SIGSTORE_BUNDLE`."""
        return self.manifest.artifact_type or self.manifest.config.media_type

    @property
    def layer(self) -> Descriptor:
        """The descriptor of its document."""
        return self.manifest.layers[0]

    def blobs(self) -> list[Descriptor]:
        """Return descriptors of all its blobs: manifest, configuration and layer."""
        return [self.descriptor, self.manifest.config, *self.manifest.layers]


class Attached(Protocol):
    """A bundle, as far as its attachments go; :class:`~.bundle.Bundle` is one."""

    @property
    def digest(self) -> str:
        """The bundle digest."""

    @property
    def has_attachments(self) -> bool:
        """Whether there may be some."""

    def attachments(self) -> tuple[list[Attachment], list[Problem]]:
        """The attachments, and what is wrong with damaged ones."""

    def attached(self, attachment: Attachment) -> memoryview:
        """The document of an attachment."""


class NewAttachment(NamedTuple):
    """An attachment to write: the entry for ``index.json``, and its blobs by digest."""

    descriptor: Descriptor
    blobs: dict[str, bytes]


def make(subject: Descriptor, kind: str, document: bytes, annotations: Mapping[str, str] | None = None) -> NewAttachment:
    """Return the attachment of ``document`` to the bundle whose index is ``subject``.

    Args:
        subject: the descriptor of the bundle index.
        kind: the media type of the document, and the artifact type of its manifest.
        document: the bytes of the document.
        annotations: annotations of the manifest. They are repeated on its descriptor, because
            registries without the referrers API list only descriptors.
    """
    bare = Descriptor(subject.media_type, subject.digest, subject.size)
    config = Descriptor(OCI_EMPTY, digests.sha256(_EMPTY), len(_EMPTY))
    layer = Descriptor(kind, digests.sha256(document), len(document))
    notes = dict(annotations or {})
    manifest = encode(AttachmentManifest(2, OCI_MANIFEST, config, [layer], kind, bare, notes))
    descriptor = Descriptor(OCI_MANIFEST, digests.sha256(manifest), len(manifest), notes, artifact_type=kind)
    return NewAttachment(descriptor, {descriptor.digest: manifest, config.digest: _EMPTY, layer.digest: document})


def read(layout: Layout, listed: Sequence[Descriptor], subject: Descriptor) -> tuple[list[Attachment], list[Problem]]:
    """Return the attachments of the bundle ``subject`` among the manifests that ``index.json`` lists.

    A damaged attachment does not make a bundle unreadable, so what is wrong is returned as problems.
    """
    found: list[Attachment] = []
    problems: list[Problem] = []
    different = list({descriptor.digest: descriptor for descriptor in listed}.values())
    size = 0
    for descriptor in different[:MAX_ATTACHMENTS]:
        size += descriptor.size
        if size > MAX_ALL_MANIFESTS:
            problems.append(Problem("index.json", f"manifests of attachments have more than {MAX_ALL_MANIFESTS} bytes"))
            break
        try:
            attachment = _read(layout, descriptor)
        except AotpackError as error:
            problems += error.problems or [Problem(descriptor.digest, error.summary)]
            continue
        about = attachment.manifest.subject if attachment is not None else None
        if attachment is not None and about is not None and about.digest == subject.digest:
            found.append(attachment)
    if len(different) > MAX_ATTACHMENTS:
        problems.append(Problem("index.json", f"it lists {len(different)} attachments; the limit is {MAX_ATTACHMENTS}"))
    return found, problems


def document(layout: Layout, attachment: Attachment) -> memoryview:
    """Return the document of an attachment, after checking its size and digest.

    Raises:
        CorruptBundleError: it is missing, damaged or too large.
    """
    _check_size(attachment.layer, MAX_LAYER_BYTES)
    return layout.read(attachment.layer)


def _read(layout: Layout, descriptor: Descriptor) -> Attachment | None:
    """Read an attachment's manifest. A manifest without a layer is no attachment of a kind that aotpack knows."""
    _check_size(descriptor, MAX_MANIFEST_BYTES)
    manifest = decode(layout.read(descriptor), AttachmentManifest, where=f"attachment {descriptor.digest}")
    return Attachment(descriptor, manifest) if manifest.layers else None


def _check_size(descriptor: Descriptor, limit: int) -> None:
    if descriptor.size > limit:
        raise CorruptBundleError(
            "An attachment of the bundle is too large.",
            [Problem(descriptor.digest, f"has {descriptor.size} bytes; the limit is {limit}")],
        )

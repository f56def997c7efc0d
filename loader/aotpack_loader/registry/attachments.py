"""Brings what is attached to a bundle in a registry: signatures, provenance and bills of materials.

Other referrers stay where they are. What an attachment says is believed only after its signature
was checked, which is not done here.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from ..archive.attachments import (
    CYCLONEDX,
    IN_TOTO,
    MAX_ATTACHMENTS,
    MAX_LAYER_BYTES,
    MAX_MANIFEST_BYTES,
    SIGSTORE_BUNDLE,
    AttachmentManifest,
)
from ..archive.digest import check
from ..errors import RegistryContentError
from ..format import media_types
from ..format.codec import decode
from ..format.schema import Descriptor, ImageIndex
from .client import Repository
from .download import Sink, download
from .store import BlobCache

_KINDS: Final = frozenset({SIGSTORE_BUNDLE, IN_TOTO, CYCLONEDX})


def bring_attachments(source: Repository, cache: BlobCache, index: Descriptor, bundle: Path) -> list[Descriptor]:
    """Bring the attachments of the bundle ``index`` into its directory of the cache.

    Returns their entries for ``index.json``.

    Raises:
        RegistryError: they cannot be pulled.
    """
    data = source.referrers(index.digest)
    if not data:
        return []
    found = []
    for entry in decode(data, ImageIndex, where=f"referrers of {index.digest}").manifests[:MAX_ATTACHMENTS]:
        # Tools that copy lists (skopeo) drop the type here, but the manifest has it.
        if entry.media_type != media_types.OCI_MANIFEST or entry.artifact_type not in ("", *_KINDS):
            continue
        _require(entry.size <= MAX_MANIFEST_BYTES, source, entry)
        raw = source.manifest(entry.digest).data
        bare = Descriptor(entry.media_type, entry.digest, entry.size)
        check(raw, bare)
        manifest = decode(raw, AttachmentManifest, where=f"attachment {entry.digest}")
        if manifest.subject is None or manifest.subject.digest != index.digest:
            continue  # a list under a tag may have entries of others
        if (manifest.artifact_type or manifest.config.media_type) not in _KINDS:
            continue
        cache.add_bytes(bare, raw)
        blobs = [manifest.config, *manifest.layers]
        for blob in blobs:
            _require(blob.size <= MAX_LAYER_BYTES, source, blob)
            cache.add(blob, functools.partial(_fill, source, blob))
        for blob in (bare, *blobs):
            cache.link(bundle, blob)
        found.append(
            Descriptor(entry.media_type, entry.digest, entry.size, manifest.annotations, artifact_type=manifest.artifact_type)
        )
    return found


def _fill(source: Repository, blob: Descriptor, sink: Sink) -> None:
    download(source, blob, sink, _ignored)


def _ignored(count: int) -> None:
    """Documents are small, so no progress is shown."""


def _require(fits: bool, source: Repository, descriptor: Descriptor) -> None:
    if not fits:
        raise RegistryContentError(f"An attachment in {source.host}/{source.name} is too large: {descriptor.digest}.")

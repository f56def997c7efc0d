"""Brings what is attached to a bundle in a registry: signatures, provenance and bills of materials.

Other referrers stay where they are. What an attachment says is believed only after its signature
was checked, which is not done here.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

import msgspec

from ..archive.attachments import (
    CYCLONEDX,
    IN_TOTO,
    MAX_ALL_BYTES,
    MAX_ATTACHMENTS,
    MAX_LAYER_BYTES,
    MAX_MANIFEST_BYTES,
    SIGSTORE_BUNDLE,
    AttachmentManifest,
)
from ..archive.digest import check
from ..errors import CorruptBundleError, RegistryContentError, RegistryNotFoundError
from ..format import media_types
from ..format.codec import decode
from ..format.schema import Descriptor
from .client import Repository
from .download import Sink, download
from .store import BlobCache

_KINDS: Final = frozenset({SIGSTORE_BUNDLE, IN_TOTO, CYCLONEDX})
_MAX_LAYERS: Final = 16
"""The first layer is the document. Writers make one."""


def bring_attachments(source: Repository, cache: BlobCache, index: Descriptor, bundle: Path) -> list[Descriptor]:
    """Bring the attachments of the bundle ``index`` into its directory of the cache.

    Returns their entries for ``index.json``. A damaged one is left out: whoever may push can add one,
    and that must not make the bundle unreadable. Then what it says is missing, as if it were not there.

    Raises:
        RegistryError: they cannot be pulled, or are more than a bundle may have.
    """
    found = []
    size = 0
    for entry in source.referrers(index.digest)[:MAX_ATTACHMENTS]:
        # The manifest says of which type it is. Some tools write another type into lists, or none.
        if entry.media_type != media_types.OCI_MANIFEST or entry.size > MAX_MANIFEST_BYTES:
            continue
        try:
            raw, manifest = _manifest(source, entry, index)
        except (CorruptBundleError, RegistryContentError, RegistryNotFoundError):
            continue
        if manifest is None:
            continue
        size += sum(blob.size for blob in (manifest.config, *manifest.layers))
        if size > MAX_ALL_BYTES:
            raise RegistryContentError(f"The attachments of {index.digest} in {source.host}/{source.name} are too large.")
        bare = Descriptor(entry.media_type, entry.digest, entry.size)
        try:
            for blob in (manifest.config, *manifest.layers):
                cache.add(blob, functools.partial(_fill, source, blob))
        except (RegistryContentError, RegistryNotFoundError):
            continue
        cache.add_bytes(bare, raw)
        for blob in (bare, manifest.config, *manifest.layers):
            cache.link(bundle, blob)
        found.append(msgspec.structs.replace(bare, annotations=manifest.annotations, artifact_type=manifest.artifact_type))
    return found


def _manifest(source: Repository, entry: Descriptor, index: Descriptor) -> tuple[bytes, AttachmentManifest | None]:
    """Return the bytes of a referrer, and what they say. None: it is no attachment of this bundle that we know."""
    raw = source.manifest(entry.digest).data
    check(raw, entry)
    manifest = decode(raw, AttachmentManifest, where=f"attachment {entry.digest}")
    if manifest.subject is None or manifest.subject.digest != index.digest:
        return raw, None  # a list under a tag may have entries of others
    known = (manifest.artifact_type or manifest.config.media_type) in _KINDS
    fits = 0 < len(manifest.layers) <= _MAX_LAYERS and all(blob.size <= MAX_LAYER_BYTES for blob in manifest.layers)
    return raw, manifest if known and fits else None


def _fill(source: Repository, blob: Descriptor, sink: Sink) -> None:
    download(source, blob, sink, _ignored)


def _ignored(count: int) -> None:
    """Documents are small, so no progress is shown."""

"""Brings what is attached to a bundle in a registry: signatures, provenance and bills of materials.

Other referrers stay where they are. What an attachment says is believed only after its signature
was checked, which is not done here.
"""

from __future__ import annotations

import functools
import warnings
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
from ..format.codec import decode, encode
from ..format.schema import Descriptor
from .client import Repository
from .download import Sink, download
from .store import BlobCache

_KINDS: Final = frozenset({SIGSTORE_BUNDLE, IN_TOTO, CYCLONEDX})
_MAX_NOTES: Final = 2 << 20
"""Bytes of entries with annotations in ``index.json``, which has a limit. Further entries have none."""
_MAX_LAYERS: Final = 16
"""The first layer is the document. Writers make one."""


def bring_attachments(source: Repository, cache: BlobCache, index: Descriptor, bundle: Path) -> list[Descriptor]:
    """Bring the attachments of the bundle ``index`` into its directory of the cache.

    Returns their entries for ``index.json``. A damaged one is left out, and so is one beyond the limits: whoever
    may push can add one, and that must not make the bundle unreadable. What it says is then missing, and a
    warning says that the list was cut. Referrers of types that aotpack knows come first.

    Raises:
        RegistryError: they cannot be pulled.
    """
    found = []
    size = noted = 0
    entries = {entry.digest: entry for entry in source.referrers(index.digest)}.values()
    # The manifest says of which type it is. Some tools write another type into lists, or none: these come last.
    fitting = [x for x in entries if x.media_type == media_types.OCI_MANIFEST and x.size <= MAX_MANIFEST_BYTES]
    fitting.sort(key=lambda entry: entry.artifact_type not in _KINDS)
    if len(fitting) > MAX_ATTACHMENTS:
        message = (
            f"{source.host}/{source.name} lists {len(fitting)} attachments of {index.digest}; the limit is {MAX_ATTACHMENTS}."
        )
        warnings.warn(f"{message} Signatures may be missing: remove what does not belong there.", UserWarning, stacklevel=2)
    for entry in fitting[:MAX_ATTACHMENTS]:
        try:
            raw, manifest = _manifest(source, entry, index)
        except (CorruptBundleError, RegistryContentError, RegistryNotFoundError):
            continue
        if manifest is None:
            continue
        own = len(raw) + sum(blob.size for blob in (manifest.config, *manifest.layers))
        if size + own > MAX_ALL_BYTES:
            continue
        size += own
        bare = Descriptor(entry.media_type, entry.digest, entry.size)
        try:
            for blob in (manifest.config, *manifest.layers):
                cache.add(blob, functools.partial(_fill, source, blob))
        except (RegistryContentError, RegistryNotFoundError):
            continue
        cache.add_bytes(bare, raw)
        for blob in (bare, manifest.config, *manifest.layers):
            cache.link(bundle, blob)
        listed = msgspec.structs.replace(bare, annotations=manifest.annotations, artifact_type=manifest.artifact_type)
        noted += len(encode(listed))
        found.append(listed if noted <= _MAX_NOTES else bare)
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

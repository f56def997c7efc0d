"""Sends what is attached to a bundle (signatures, provenance, bills of materials), as OCI referrers.

A registry with the referrers API lists a manifest by its ``subject``. For one without it, an index
under the tag ``sha256-<hex>`` lists the same descriptors, with artifact types and annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotpack_loader.archive.attachments import Attachment
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.digest import sha256
from aotpack_loader.errors import RegistryError, RegistryNotFoundError
from aotpack_loader.format import media_types
from aotpack_loader.format.codec import decode, encode
from aotpack_loader.format.schema import Descriptor, ImageIndex
from aotpack_loader.registry.client import Repository, referrers_tag

from .manifests import put_manifest
from .upload import Upload

_TRIES = 5


def push_attachments(repository: Repository, bundle: Bundle) -> list[str]:
    """Send the attachments of ``bundle``, which is there already. Returns the digests of their manifests.

    Raises:
        RegistryError: the registry refused one.
        CorruptBundleError: one is damaged.
    """
    found, _ = bundle.attachments()
    unlisted = [attachment for attachment in found if not _push(repository, bundle, attachment)]
    if unlisted:
        list_referrers(repository, bundle.digest, [described(attachment) for attachment in unlisted])
    return [attachment.descriptor.digest for attachment in found]


def described(attachment: Attachment) -> Descriptor:
    """Return the descriptor under which an index lists an attachment."""
    manifest, descriptor = attachment.manifest, attachment.descriptor
    return Descriptor(
        media_types.OCI_MANIFEST,
        descriptor.digest,
        descriptor.size,
        manifest.annotations,
        artifact_type=manifest.artifact_type or manifest.config.media_type,
    )


def list_referrers(repository: Repository, subject: str, entries: Sequence[Descriptor]) -> None:
    """Add entries to the index under the tag that stands for the referrers of ``subject``.

    The API has no lock. Another writer's index may replace this one, so it is read again.

    Raises:
        RegistryError: others kept replacing it.
    """
    tag = referrers_tag(subject)
    for _ in range(_TRIES):
        listed = _listed(repository, tag)
        present = {entry.digest for entry in listed}
        missing = [entry for entry in entries if entry.digest not in present]
        if not missing:
            return
        data = encode(ImageIndex(2, [*listed, *missing], media_types.OCI_INDEX))
        put_manifest(repository, Descriptor(media_types.OCI_INDEX, sha256(data), len(data)), data, tag)
    raise RegistryError(f"The list of referrers {tag} in {repository.host}/{repository.name} keeps changing.", hint="Push again.")


def _push(repository: Repository, bundle: Bundle, attachment: Attachment) -> bool:
    """Send one attachment. Returns whether the registry lists it by its subject."""
    manifest, *blobs = attachment.blobs()
    for blob in blobs:
        Upload(repository, blob, _reader(bundle, blob), _ignored).run()
    return bool(put_manifest(repository, manifest, bytes(bundle.read(manifest))))


def _reader(bundle: Bundle, blob: Descriptor) -> Callable[[], memoryview]:
    return lambda: bundle.read(blob)


def _ignored(count: int) -> None:
    """Documents are small, so no progress is shown."""


def _listed(repository: Repository, tag: str) -> list[Descriptor]:
    try:
        data = repository.manifest(tag).data
    except RegistryNotFoundError:
        return []
    return decode(data, ImageIndex, where=f"referrers {tag}").manifests

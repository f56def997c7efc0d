"""``push``: sends a bundle's blobs and manifests to a repository, and then names it by its tag.

Blobs go up as they are, and first those that the registry lacks are found out. A manifest follows
the blobs it lists, and the tag comes last, so a repository never has a bundle with parts missing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import RegistryError
from aotpack_loader.format import media_types
from aotpack_loader.format.schema import Descriptor
from aotpack_loader.registry.client import Repository
from aotpack_loader.registry.parallel import run_all
from aotpack_loader.registry.progress import Progress, Silent
from aotpack_loader.registry.reference import Reference
from aotpack_loader.registry.transport import Transport

from .attachments import push_attachments
from .manifests import put_manifest
from .upload import Upload

_MANIFESTS = (media_types.OCI_MANIFEST, media_types.OCI_INDEX)


@dataclass
class Pushed:
    """What a push sent. Each blob's digest is under what became of it; the sizes are in bytes."""

    reference: Reference
    digest: str
    dry_run: bool = False
    blobs: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    attachments: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "reference": str(self.reference),
            "digest": self.digest,
            "pinned": str(self.reference.at(self.digest)),
            "dryRun": self.dry_run,
            "blobs": self.blobs,
            "bytes": self.sizes,
            "attachments": self.attachments,
        }


def push(
    bundle: str | os.PathLike[str],
    reference: Reference,
    *,
    transport: Transport | None = None,
    progress: Progress | None = None,
    mounts: Sequence[str] = (),
    dry_run: bool = False,
) -> Pushed:
    """Send the bundle file or directory ``bundle`` to ``reference``.

    Args:
        bundle: what to send.
        reference: where to. Its tag is set last. Without a tag the bundle is found by digest only.
        transport: connections to registries.
        progress: an observer.
        mounts: repositories of the same registry that may have some of the blobs.
        dry_run: find out what would be sent, and send nothing.

    Raises:
        RegistryError: the registry refused it, cannot be reached, or ``reference`` has another digest.
        BundleError: it is not a valid bundle.
    """
    transport = transport or Transport()
    observer = progress or Silent()
    repository = Repository.of(transport, reference, write=not dry_run)
    with Bundle.open(bundle) as opened:
        if reference.digest not in ("", opened.digest):
            raise RegistryError(f"The bundle has the digest {opened.digest}, and {reference} names another.")
        report = Pushed(reference, opened.digest, dry_run)
        descriptors = opened.descriptors()
        blobs = sorted((d for d in descriptors if not is_manifest(d)), key=lambda d: -d.size)

        def send(descriptor: Descriptor) -> None:
            observer.begin(descriptor)
            if dry_run:
                exists = repository.has_blob(descriptor.digest, descriptor.size)
                outcome: Any = "exists" if exists else "to upload"
            else:
                advance = functools.partial(observer.advance, descriptor)
                outcome = Upload(repository, descriptor, functools.partial(_bytes, opened, descriptor), advance).run(
                    tuple(mounts)
                )
            observer.end(descriptor, outcome)
            report.blobs.setdefault(outcome, []).append(descriptor.digest)
            report.sizes[outcome] = report.sizes.get(outcome, 0) + descriptor.size

        run_all(transport, (functools.partial(send, descriptor) for descriptor in blobs))
        if not dry_run:
            (index, *_), manifests = descriptors, [d for d in descriptors if d.media_type == media_types.OCI_MANIFEST]
            run_all(transport, (functools.partial(put_manifest, repository, d, bytes(opened.read(d))) for d in manifests))
            put_manifest(repository, index, bytes(opened.read(index)), reference.tag)
            report.attachments = push_attachments(repository, opened)
    for digests in report.blobs.values():
        digests.sort()
    return report


def is_manifest(descriptor: Descriptor) -> bool:
    """Whether a registry keeps a blob as a manifest."""
    return descriptor.media_type in _MANIFESTS


def _bytes(bundle: Bundle, descriptor: Descriptor) -> memoryview:
    """Return the bytes of a blob, which the registry checks."""
    if not bundle.has(descriptor):
        raise RegistryError(
            f"This copy of the bundle lacks the blob {descriptor.digest}, and so does the registry.",
            hint="It was pulled for some targets only. Pull it without `--target`, or push from where the whole bundle is.",
        )
    return bundle.map(descriptor)

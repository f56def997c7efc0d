"""``copy``: a bundle from one repository to another, with all its targets. Blobs of the same registry are mounted."""

from __future__ import annotations

import functools

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.format.schema import Descriptor
from aotpack_loader.registry.client import Repository
from aotpack_loader.registry.parallel import run_all
from aotpack_loader.registry.progress import Progress
from aotpack_loader.registry.pull import Puller
from aotpack_loader.registry.reference import Reference
from aotpack_loader.registry.transport import Transport

from .push import Pushed, is_manifest, push
from .upload import mount


def copy(
    source: Reference, destination: Reference, *, transport: Transport | None = None, progress: Progress | None = None
) -> Pushed:
    """Copy the bundle at ``source`` to ``destination``. It keeps its digest.

    Blobs that can be neither found nor mounted there come through the local cache.

    Raises:
        RegistryError: it cannot be pulled or pushed.
        BundleError: what is at ``source`` is not a valid bundle.
    """
    transport = transport or Transport()
    puller = Puller(source, transport=transport, progress=progress)
    with puller.documents() as bundle:
        missing = _missing(bundle, source, destination, transport)
        puller.layers(bundle, [name for name in bundle.targets if missing & _layers(bundle, name)])
        mounts = [source.repository] if source.host == destination.host else []
        return push(puller.pulled.path, destination, transport=transport, progress=progress, mounts=mounts)


def _layers(bundle: Bundle, target: str) -> set[str]:
    return {layer.digest for layer in bundle.manifests[target].manifest.layers}


def _missing(bundle: Bundle, source: Reference, destination: Reference, transport: Transport) -> set[str]:
    """Return the digests of blobs that the destination neither has nor can mount."""
    there = Repository.of(transport, destination, write=True)
    same = source.host == destination.host
    blobs = [descriptor for descriptor in bundle.descriptors() if not is_manifest(descriptor)]

    def found(blob: Descriptor) -> bool:
        return there.has_blob(blob.digest, blob.size) or (same and mount(there, blob.digest, source.repository)[0])

    has = run_all(transport, [functools.partial(found, blob) for blob in blobs])
    return {blob.digest for blob, is_there in zip(blobs, has, strict=True) if not is_there}

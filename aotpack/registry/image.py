"""``push --as image``: a bundle as an OCI image of one layer, for machines that mount images as volumes.

The layer is the packed bundle: a plain tar of the layout, uncompressed. So a mounted image is an
unpacked bundle, and equal bundles make equal images. The image runs nothing. An index lists it for
each architecture, because a node pulls the entry of its own.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.digest import sha256
from aotpack_loader.archive.temporaries import temporary_directory
from aotpack_loader.errors import RegistryError
from aotpack_loader.format import media_types
from aotpack_loader.format.schema import Descriptor
from aotpack_loader.registry.client import Repository
from aotpack_loader.registry.export import export
from aotpack_loader.registry.progress import Progress, Silent
from aotpack_loader.registry.reference import Reference
from aotpack_loader.registry.transport import Transport

from .attachments import list_referrers
from .manifests import put_manifest
from .push import Pushed
from .upload import Upload

CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
ARCHITECTURES: Final = ("amd64", "arm64")


def push_image(
    bundle: str | os.PathLike[str],
    reference: Reference,
    *,
    transport: Transport | None = None,
    progress: Progress | None = None,
) -> Pushed:
    """Send the bundle file or directory ``bundle`` as an image. The report's digest is that of the image index.

    Raises:
        RegistryError: the registry refused it, or cannot be reached.
        BundleError: it is not a valid bundle.
    """
    transport, observer = transport or Transport(), progress or Silent()
    repository = Repository.of(transport, reference, write=True)
    with Bundle.open(bundle) as opened, _packed(Path(bundle), opened) as data:
        layer = Descriptor(LAYER, sha256(data), len(data))
        documents, index = _documents(opened, layer)
        report = Pushed(reference, index.digest)
        for descriptor, content in [(layer, data), *((d, memoryview(c)) for d, c in documents if d.media_type == CONFIG)]:
            observer.begin(descriptor)
            upload = Upload(repository, descriptor, _constant(content), functools.partial(observer.advance, descriptor))
            outcome = upload.run()
            observer.end(descriptor, outcome)
            report.blobs.setdefault(outcome, []).append(descriptor.digest)
            report.sizes[outcome] = report.sizes.get(outcome, 0) + descriptor.size
        listed = False
        for descriptor, document in documents:
            if descriptor.media_type != CONFIG:
                tag = reference.tag if descriptor is index else ""
                listed = bool(put_manifest(repository, descriptor, document, tag))
        if not listed:
            list_referrers(repository, opened.digest, [index])
    return report


def _documents(bundle: Bundle, layer: Descriptor) -> tuple[list[tuple[Descriptor, bytes]], Descriptor]:
    """Return configurations, manifests and the index of the image with their bytes, and the index's descriptor."""
    notes = {media_types.ANNOTATION_BUNDLE: bundle.digest}
    made: list[tuple[Descriptor, bytes]] = []
    entries = []
    for architecture in ARCHITECTURES:
        content = {
            "architecture": architecture,
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
        }
        config = _add(made, CONFIG, content)
        manifest = {
            "schemaVersion": 2,
            "mediaType": media_types.OCI_MANIFEST,
            "config": _plain(config),
            "layers": [_plain(layer)],
            "annotations": notes,
        }
        entry = _plain(_add(made, media_types.OCI_MANIFEST, manifest))
        entries.append({**entry, "platform": {"architecture": architecture, "os": "linux"}})
    index = {
        "schemaVersion": 2,
        "mediaType": media_types.OCI_INDEX,
        "manifests": entries,
        "subject": _plain(bundle.index),
        "annotations": notes,
    }
    return made, _add(made, media_types.OCI_INDEX, index, notes)


def _add(made: list[tuple[Descriptor, bytes]], media_type: str, document: Any, notes: dict[str, str] | None = None) -> Descriptor:
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    descriptor = Descriptor(media_type, sha256(data), len(data), notes or {})
    made.append((descriptor, data))
    return descriptor


def _plain(descriptor: Descriptor) -> dict[str, Any]:
    return {"mediaType": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size}


def _constant(data: memoryview) -> Any:
    return lambda: data


@contextmanager
def _packed(path: Path, bundle: Bundle) -> Iterator[memoryview]:
    """The bytes of the packed bundle. An unpacked one is packed into a temporary file."""
    if not path.is_dir():
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                yield view
            finally:
                view.release()
        return
    if not all(map(bundle.has, bundle.descriptors())):
        raise RegistryError(f"The bundle {path} lacks layers of some targets.", hint="Pull it without `--target`.")
    attached = [blob for attachment in bundle.attachments()[0] for blob in attachment.blobs()]
    with temporary_directory(Path(tempfile.gettempdir())) as folder:
        index = (path / "index.json").read_bytes()
        file_path = export(path / "blobs" / "sha256", [*bundle.descriptors(), *attached], index, folder / "layer.tar")
        with _packed(file_path, bundle) as view:
            yield view

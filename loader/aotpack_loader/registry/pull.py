"""``pull``: brings a bundle from a registry into the local cache, with the layers of chosen targets only.

The bundle index, every manifest, the program and every target's document come first: they are small,
and with them the copy has the original's digest. What is in the cache is not fetched again. A
reference with a digest that is cached needs no network at all.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..archive.bundle import Bundle
from ..archive.digest import check, is_digest
from ..archive.manifests import MAX_TARGETS
from ..errors import Problem, RegistryContentError, RegistryError, TargetError
from ..format import media_types
from ..format.codec import MAX_DOCUMENT_BYTES, decode, encode
from ..format.schema import Descriptor, ImageIndex, Manifest
from .attachments import bring_attachments
from .client import MAX_MANIFEST_BYTES, RemoteManifest, Repository
from .download import Sink, download
from .export import Part, export
from .parallel import run_all
from .progress import Progress, Silent
from .reference import Reference
from .responses import printable
from .store import BlobCache
from .transport import Transport

T = TypeVar("T")
_NAMED = {media_types.ANNOTATION_REF_NAME: "latest"}
Choose = Callable[[Bundle], Collection[str]]
"""Names the targets to pull, given a bundle of which only the documents are there."""


@dataclass
class Pulled:
    """What a pull brought. ``fetched`` and ``reused`` are bytes of blobs."""

    reference: Reference
    path: Path
    digest: str
    targets: list[str] = field(default_factory=list)
    fetched: int = 0
    reused: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "reference": str(self.reference),
            "pinned": str(self.reference.at(self.digest)),
            "bundle": str(self.path),
            "digest": self.digest,
            "targets": self.targets,
            "bytes": {"fetched": self.fetched, "cached": self.reused},
        }


class Puller:
    """Pulls one bundle. It asks the mirrors first, and the registry itself last."""

    def __init__(
        self,
        reference: Reference,
        *,
        transport: Transport | None = None,
        cache: BlobCache | None = None,
        progress: Progress | None = None,
        refresh: bool = False,
    ) -> None:
        self._refresh = refresh
        self.reference = reference
        self.transport = transport or Transport()
        self.cache = cache or BlobCache()
        self._progress = progress or Silent()
        self._sources = [Repository.of(self.transport, source) for source in self.transport.settings.sources(reference)]
        self.pulled = Pulled(reference, Path(), "")
        self._listed: list[Descriptor] = []

    def documents(self) -> Bundle:
        """Bring the documents into the cache and open the bundle.

        Raises:
            RegistryError: the registry has no such bundle, or cannot be reached.
            BundleError: the documents are not those of a valid bundle.
        """
        digest = self.reference.digest or self._first(lambda source: source.resolve(self.reference.wanted))
        index = self._index(digest)
        listed = decode(self._read(index), ImageIndex, where="bundle index")
        _refuse_other_index(listed, self.reference)
        if len(listed.manifests) > MAX_TARGETS:
            raise RegistryContentError(f"{self.reference} lists {len(listed.manifests)} targets; the limit is {MAX_TARGETS}.")
        manifests = run_all(self.transport, (functools.partial(self._manifest, entry) for entry in listed.manifests))
        documents = {document.digest: document for m in manifests for document in (m.config, *m.layers[:1])}
        if sum(document.size for document in documents.values()) > MAX_DOCUMENT_BYTES:
            raise RegistryContentError(f"The documents of {self.reference} have more than {MAX_DOCUMENT_BYTES} bytes.")
        self._bring(documents.values())
        path = self.cache.bundle(index.digest)
        for descriptor in (index, *listed.manifests, *documents.values()):
            self.cache.link(path, descriptor)
        attached = self._attachments(index, path)
        # Beside attachments the bundle has a name, so that tools which copy one image of a layout find it.
        self._listed = [msgspec.structs.replace(index, annotations=_NAMED if attached else {}), *attached]
        self.pulled.path, self.pulled.digest = path, index.digest
        self._write_index(_copied(path))
        self.cache.mark_used(path)
        return Bundle.open(path)

    def layers(self, bundle: Bundle, targets: Collection[str]) -> None:
        """Bring all layers of ``targets`` into the cached bundle."""
        layers = {layer.digest: layer for name in targets for layer in bundle.manifests[name].manifest.layers}
        self._bring(layers.values())
        for layer in layers.values():
            self.cache.link(self.pulled.path, layer)
        self.pulled.targets = sorted({*self.pulled.targets, *targets})
        before = _copied(self.pulled.path)
        here = None if before is None else {*before, *targets}
        self._write_index(None if here is None or here >= bundle.targets.keys() else here)

    def export(self, bundle: Bundle, targets: Collection[str], out: str | os.PathLike[str]) -> None:
        """Write the bundle with ``targets`` to ``out``. Layers that are not in the cache go there directly."""
        self.pulled.targets = sorted({*self.pulled.targets, *targets})
        whole = set(self.pulled.targets) == bundle.targets.keys()
        index = self._index_json(None if whole else self.pulled.targets)
        self.pulled.path = export(self.cache.blobs, self._present(bundle), index, out, self._into)

    def _write_index(self, targets: Collection[str] | None) -> None:
        self.cache.write(self.pulled.path, self._index_json(targets))

    def _index_json(self, targets: Collection[str] | None) -> bytes:
        """Return ``index.json`` of a copy with ``targets``. None: it has all of them."""
        bundle, *attached = self._listed
        if targets is not None:
            noted = bundle.annotations | {media_types.ANNOTATION_TARGETS: ",".join(sorted(targets))}
            bundle = msgspec.structs.replace(bundle, annotations=noted)
        return encode(ImageIndex(2, [bundle, *attached], media_types.OCI_INDEX))

    def _present(self, bundle: Bundle) -> list[Descriptor]:
        """Return the documents, and the layers of the targets that were pulled."""
        found = {descriptor.digest: descriptor for descriptor in bundle.documents()}
        found |= {blob.digest: blob for attachment in bundle.attachments()[0] for blob in attachment.blobs()}
        found |= {layer.digest: layer for name in self.pulled.targets for layer in bundle.manifests[name].manifest.layers}
        return list(found.values())

    def _bring(self, descriptors: Iterable[Descriptor]) -> None:
        """Bring blobs into the cache, the largest first."""
        wanted = sorted(descriptors, key=lambda descriptor: -descriptor.size)
        run_all(self.transport, (functools.partial(self._blob, descriptor) for descriptor in wanted))

    def _blob(self, descriptor: Descriptor) -> None:
        self._progress.begin(descriptor)

        def fill(sink: Sink) -> None:
            advance = functools.partial(self._progress.advance, descriptor)
            self._first(lambda source: download(source, descriptor, sink, advance))

        fetched = self.cache.add(descriptor, fill)
        self._progress.end(descriptor, "fetched" if fetched else "cached")
        self._count(descriptor, fetched)

    def _into(self, parts: Sequence[Part]) -> None:
        """Fetch blobs into files of an export."""
        run_all(self.transport, (functools.partial(self._part, part) for part in parts))

    def _part(self, part: Part) -> None:
        descriptor = part.descriptor
        self._progress.begin(descriptor)
        advance = functools.partial(self._progress.advance, descriptor)
        handle = os.open(part.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            sink = Sink(handle, part.offset)
            self._first(lambda source: download(source, descriptor, sink, advance))
        finally:
            os.close(handle)
        self._progress.end(descriptor, "fetched")
        self._count(descriptor, fetched=True)

    def _index(self, digest: str) -> Descriptor:
        """Bring the bundle index into the cache and return its descriptor."""
        path = self.cache.path(digest)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            found = self._first(lambda source: source.manifest(digest))
            refuse_other(found, self.reference)
            index = Descriptor(media_types.OCI_INDEX, digest, len(found.data), artifact_type=media_types.BUNDLE)
            self.cache.add_bytes(index, found.data)
            self._count(index, fetched=True)
            return index
        return Descriptor(media_types.OCI_INDEX, digest, size, artifact_type=media_types.BUNDLE)

    def _manifest(self, descriptor: Descriptor) -> Manifest:
        """Bring one manifest into the cache and decode it."""
        if descriptor.media_type != media_types.OCI_MANIFEST or descriptor.size > MAX_MANIFEST_BYTES:
            raise RegistryContentError(f"The bundle index {self.reference} lists something that is no manifest of a target.")
        if not self.cache.has(descriptor):
            data = self._first(lambda source: source.manifest(descriptor.digest)).data
            check(data, descriptor)
            self.cache.add_bytes(descriptor, data)
            self._count(descriptor, fetched=True)
        manifest = decode(self._read(descriptor), Manifest, where=f"manifest {descriptor.digest}")
        if not manifest.layers:
            raise RegistryContentError(f"The manifest {descriptor.digest} in {self.reference} has no layers.")
        return manifest

    def _attachments(self, index: Descriptor, path: Path) -> list[Descriptor]:
        """Bring the attachments of the bundle and return their entries for ``index.json``.

        They are asked for again with each pull that contacts the registry, because a signature may
        come later. If the registry cannot be asked, those that are here stay.
        """
        known = _beside(path)
        if known is not None and self.reference.digest and not self._refresh:
            return known
        try:
            return self._first(lambda source: bring_attachments(source, self.cache, index, path))
        except RegistryError:
            if known is None:
                raise
            self.transport.check_stopped()
            return known

    def _read(self, descriptor: Descriptor) -> bytes:
        data = self.cache.path(descriptor.digest).read_bytes()
        check(data, descriptor)
        return data

    def _count(self, descriptor: Descriptor, fetched: bool) -> None:
        if fetched:
            self.pulled.fetched += descriptor.size
        else:
            self.pulled.reused += descriptor.size

    def _first(self, ask: Callable[[Repository], T]) -> T:
        """Return what the first source gives that can: the mirrors, then the registry itself."""
        refused: list[Problem] = []
        for source in self._sources[:-1]:
            try:
                return ask(source)
            except RegistryError as error:
                self.transport.check_stopped()
                refused.append(Problem(f"mirror {source.host}", error.summary))
        try:
            return ask(self._sources[-1])
        except RegistryError as error:
            if refused:
                raise type(error)(error.summary, [*refused, *error.problems], hint=error.hint) from error
            raise


def pull(
    reference: Reference,
    choose: Choose,
    *,
    out: str | os.PathLike[str] | None = None,
    keep: bool = True,
    refresh: bool = False,
    transport: Transport | None = None,
    cache: BlobCache | None = None,
    progress: Progress | None = None,
) -> Pulled:
    """Bring a bundle into the cache, with the targets that ``choose`` names, and from there to ``out``.

    ``out`` is a file, or a directory if it ends in ``/``. Without ``keep``, layers that are not in the
    cache go straight to ``out``: they take space once, but a killed pull begins again. With ``refresh``
    the registry is asked for new signatures even if the bundle is in the cache.

    Raises:
        RegistryError: it cannot be pulled.
        BundleError: what is there is not a valid bundle.
        DirectoryError: the cache cannot be written to.
    """
    puller = Puller(reference, transport=transport, cache=cache, progress=progress, refresh=refresh)
    with puller.documents() as bundle:
        targets = choose(bundle)
        if keep or out is None:
            puller.layers(bundle, targets)
        if out is not None:
            puller.export(bundle, targets, out)
    return puller.pulled


def by_name(names: Collection[str]) -> Choose:
    """Return a choice of targets by name (``cpu:x86-64-v3``) or kind (``cpu``); of all targets without any name."""

    def choose(bundle: Bundle) -> Collection[str]:
        chosen = [target for target in bundle.targets if not names or target in names or target.partition(":")[0] in names]
        missing = [name for name in names if not any(name in (target, target.partition(":")[0]) for target in chosen)]
        if missing:
            have = ", ".join(bundle.targets)
            raise TargetError(f"The bundle has no target {', '.join(map(repr, missing))}.", hint=f"It has: {have}.")
        return chosen

    return choose


def _beside(path: Path) -> list[Descriptor] | None:
    """Return the entries of attachments of a bundle in the cache; None: it is not there."""
    found = _entries(path)
    return None if found is None else found[1:]


def _copied(path: Path) -> set[str] | None:
    """Return the targets that a bundle in the cache was pulled with; None: all of them."""
    found = _entries(path)
    listed = "" if found is None else found[0].annotations.get(media_types.ANNOTATION_TARGETS)
    return None if listed is None else {name for name in listed.split(",") if name}


def _entries(path: Path) -> list[Descriptor] | None:
    try:
        return decode((path / "index.json").read_bytes(), ImageIndex, where="index.json").manifests
    except FileNotFoundError:
        return None


def _refuse_other_index(listed: ImageIndex, reference: Reference) -> None:
    """Refuse an index that is not a bundle's, and say where the bundle of an image is."""
    if listed.artifact_type == media_types.BUNDLE:
        return
    digest = listed.annotations.get(media_types.ANNOTATION_BUNDLE, "")
    if is_digest(digest):
        hint = f"Pull the bundle itself, if it was pushed: oci://{reference.host}/{reference.repository}@{digest}"
        raise RegistryContentError(f"{reference} is the image of a bundle, to be mounted as a volume.", hint=hint)
    raise RegistryContentError(f"{reference} is an OCI image index, but not that of an aotpack bundle.")


def refuse_other(found: RemoteManifest, reference: Reference) -> None:
    """Raise an error that says what is at ``reference``, unless it is a bundle's index.

    Raises:
        RegistryContentError: it is something else, or one target alone of a bundle.
    """
    if len(found.data) > MAX_MANIFEST_BYTES:
        raise RegistryContentError(f"{reference} is larger than any manifest.")
    if found.media_type == media_types.OCI_INDEX:
        return
    if found.media_type == media_types.OCI_MANIFEST and media_types.PROGRAM.encode() in found.data:
        raise RegistryContentError(
            f"{reference} is one target of a bundle without its bundle index.",
            hint="Copy the whole bundle: `aotpack copy`, or `skopeo copy --all`.",
        )
    kind = printable(found.media_type)[:100] or "document of unknown type"
    raise RegistryContentError(f"{reference} is a {kind}, not an aotpack bundle.")

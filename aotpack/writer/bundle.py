"""Writes bundles: blobs into an OCI image layout, as one tar file or as a directory.

This module ensures determinism (equal input gives equal bytes) and atomicity (a whole bundle or
none). It knows media types and manifests. It does not know what a program means.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Literal, NamedTuple

from msgspec import structs

from aotpack_loader.archive import compression
from aotpack_loader.archive.digest import PREFIX, hex_part, sha256
from aotpack_loader.archive.tar import BLOCK, MAX_ENTRIES, MAX_SIZE
from aotpack_loader.archive.tar_header import header
from aotpack_loader.archive.temporaries import remove_stale, replace_directory, temporary_directory, temporary_file
from aotpack_loader.errors import BuildError
from aotpack_loader.format import media_types
from aotpack_loader.format.codec import encode
from aotpack_loader.format.schema import Descriptor, Document, ImageIndex, Manifest, Platform, Program, Target

from .destination import check_destination, new_directory, parent_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

    from aotpack_loader.archive.attachments import NewAttachment

_CHUNK = 1 << 20
MARKER = b'{"imageLayoutVersion":"1.0.0"}'


class TargetEntry(NamedTuple):
    """One target to write: its document, its platform (None: any), the blobs it needs, its program (None: the bundle's)."""

    target: Target
    platform: Platform | None
    layers: Sequence[Descriptor]
    config: Descriptor | None = None


class Existing(NamedTuple):
    """The contents of a bundle that gets more targets: their program, its targets' manifests, and all blobs' digests.

    All of these blobs are in the store, unchanged byte for byte.
    """

    config: Descriptor
    manifests: Sequence[Descriptor]
    digests: Set[str]


class BlobStore:
    """The blobs of a bundle that is being written, each kept once.

    As a context manager it removes its staging directory.

    Large blobs are in a staging directory beside ``out``, and so on the file system of the bundle.
    """

    def __init__(self, out: str | os.PathLike[str]) -> None:
        self._parent = parent_of(Path(os.path.abspath(out)))
        remove_stale(self._parent)
        self._temporaries = contextlib.ExitStack()
        self._staging: Path | None = None
        self._blobs: dict[str, bytes | memoryview | Path] = {}
        self._sizes: dict[str, int] = {}

    def __enter__(self) -> BlobStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Drop the blobs and remove the staging directory. May be called twice."""
        self._staging = None
        self._blobs.clear()
        self._sizes.clear()
        self._temporaries.close()

    def __contains__(self, digest: object) -> bool:
        return digest in self._blobs

    def add_bytes(self, data: bytes, media_type: str, annotations: Mapping[str, str] | None = None) -> Descriptor:
        """Keep ``data`` in memory as a blob."""
        digest = sha256(data)
        self._add(digest, data, len(data))
        return Descriptor(media_type, digest, len(data), dict(annotations or {}))

    def add_compressed(self, data: bytes, media_type: str) -> Descriptor:
        """Keep ``data`` as a zstd blob.

        Its descriptor records the size and digest of the raw bytes.

        Raises:
            BuildError: ``data`` is larger than a loader accepts.
        """
        limit = compression.MAX_RAW_BYTES
        if len(data) > limit:
            raise BuildError(f"A {media_type} of {len(data)} bytes is too large: the limit is {limit}.")
        annotations = {
            media_types.ANNOTATION_RAW_SIZE: str(len(data)),
            media_types.ANNOTATION_RAW_DIGEST: sha256(data),
        }
        return self.add_bytes(compression.compress(data), media_type, annotations)

    def add_document(self, document: Document, media_type: str) -> Descriptor:
        """Keep the canonical JSON of ``document`` as a blob."""
        return self.add_bytes(encode(document), media_type)

    def add_file(self, path: str | os.PathLike[str], media_type: str) -> Descriptor:
        """Add the file at ``path`` as a blob.

        It is copied only when the bundle is written, so it must not change before.
        """
        source = Path(path).absolute()
        with open(source, "rb", buffering=0) as file:
            digest = PREFIX + hashlib.file_digest(file, "sha256").hexdigest()
            size = os.fstat(file.fileno()).st_size
        self._add(digest, source, size)
        return Descriptor(media_type, digest, size)

    def add_blob(self, descriptor: Descriptor, data: memoryview) -> None:
        """Keep a blob of another bundle unchanged.

        Its digest is checked when the blob is written.
        """
        self._add(descriptor.digest, data, descriptor.size)

    @contextlib.contextmanager
    def writer(self, media_type: str) -> Iterator[BlobWriter]:
        """Stream a blob to the staging directory.

        Its ``descriptor`` is set when the block is left.
        """
        path = self._new_path()
        with open(path, "xb", buffering=0) as file:
            writer = BlobWriter(file)
            yield writer
        digest = writer.digest()
        if digest in self._blobs:
            path.unlink()
        self._add(digest, path, writer.size)
        writer.descriptor = Descriptor(media_type, digest, writer.size)

    def size(self, digest: str) -> int:
        """Return the size of a blob in bytes."""
        return self._sizes[digest]

    def copy(self, digest: str, file: IO[bytes]) -> None:
        """Append a blob to ``file``.

        Raises:
            BuildError: a file that was added has changed since, or a blob of another bundle is
                damaged.
        """
        blob = self._blobs[digest]
        if isinstance(blob, bytes):
            file.write(blob)
            return
        hasher = hashlib.sha256()
        for chunk in _chunks(blob):
            hasher.update(chunk)
            file.write(chunk)
        if PREFIX + hasher.hexdigest() != digest:
            if isinstance(blob, Path):
                raise BuildError(f"The file {blob} changed while the bundle was written.")
            raise BuildError(f"The blob {digest} of the bundle to compile is damaged.", hint="Fetch that bundle again.")

    def place(self, digest: str, path: Path) -> None:
        """Make the file ``path`` of a blob, as a second name of the same file where that is possible."""
        blob = self._blobs[digest]
        if isinstance(blob, Path):
            with contextlib.suppress(OSError):
                os.link(blob, path)
                return
        with open(path, "xb") as file:
            self.copy(digest, file)

    def _add(self, digest: str, blob: bytes | memoryview | Path, size: int) -> None:
        self._blobs.setdefault(digest, blob)
        self._sizes.setdefault(digest, size)

    def _new_path(self) -> Path:
        if self._staging is None:
            self._staging = self._temporaries.enter_context(new_directory(self._parent))
        return self._staging / secrets.token_hex(8)


def _chunks(blob: memoryview | Path) -> Iterator[Buffer]:
    if isinstance(blob, Path):
        with open(blob, "rb", buffering=0) as source:
            while chunk := source.read(_CHUNK):
                yield chunk
    else:
        yield from (blob[start : start + _CHUNK] for start in range(0, len(blob), _CHUNK))


class BlobWriter:
    """A blob that is being streamed and hashed. ``descriptor`` is None until it is complete."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._hasher = hashlib.sha256()
        self.size = 0
        self.descriptor: Descriptor | None = None

    def write(self, data: Buffer) -> None:
        """Append ``data``."""
        view = memoryview(data).cast("B")
        left = view
        while left:
            try:
                left = left[self._file.write(left) :]
            except OSError as error:
                folder = Path(os.fsdecode(self._file.name)).parent.parent
                raise BuildError(f"Weights cannot be written to {folder}: {error.strerror}.") from error
        self._hasher.update(view)
        self.size += len(view)

    def digest(self) -> str:
        """Return the digest of what has been written so far."""
        return PREFIX + self._hasher.hexdigest()


def write_bundle(
    out: str | os.PathLike[str],
    store: BlobStore,
    program: Program,
    targets: Sequence[TargetEntry],
    *,
    layout: Literal["file", "directory"] = "file",
    existing: Existing | None = None,
    attachments: Callable[[Descriptor], Sequence[NewAttachment]] | None = None,
) -> str:
    """Write a bundle to ``out`` and return its digest.

    A path that ends in ``/`` asks for a directory. With ``existing``, the program is that of the
    existing bundle, and ``targets`` come after its targets. Only blobs that a target lists are
    written. ``attachments`` makes the bundle's attachments from the descriptor of its index. ``out`` does
    not change before the bundle is complete. After an exception, no files remain.

    Raises:
        BuildError: a layer is not in ``store``, ``out`` is not a bundle, or it cannot be written.
    """
    path, as_directory = check_destination(out, layout)
    index, digests = _documents(store, program, targets, existing)
    added = list(attachments(index)) if attachments is not None else []
    for blob in (blob for each in added for blob in each.blobs.values()):
        digests.add(store.add_bytes(blob, "").digest)
    top = top_index(index, [each.descriptor for each in added])
    write = _write_directory if as_directory else _write_file
    try:
        write(path, store, top, sorted(digests | {index.digest}))
    except OSError as error:
        raise BuildError(f"The bundle {path} cannot be written: {error.strerror or error}.") from error
    return index.digest


def write_candidate(folder: Path, store: BlobStore, program: Program, targets: Sequence[TargetEntry]) -> None:
    """Write a bundle into ``folder`` to be read by this process alone, without copying its large blobs."""
    index, digests = _documents(store, program, targets, None)
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for digest in sorted(digests | {index.digest}):
        store.place(digest, blobs / hex_part(digest))
    (folder / "index.json").write_bytes(top_index(index, []))
    (folder / "oci-layout").write_bytes(MARKER)


def top_index(bundle: Descriptor, beside: Sequence[Descriptor]) -> bytes:
    """Return ``index.json`` of a bundle with attachments."""
    if beside:
        # Tools that copy one image of a layout of several need its name (tried: skopeo).
        name = {media_types.ANNOTATION_REF_NAME: "latest"}
        bundle = structs.replace(bundle, artifact_type=media_types.BUNDLE, annotations=name | bundle.annotations)
    return encode(ImageIndex(2, [bundle, *beside], media_types.OCI_INDEX))


def _documents(
    store: BlobStore, program: Program, targets: Sequence[TargetEntry], existing: Existing | None
) -> tuple[Descriptor, set[str]]:
    """Add the program, targets, manifests and bundle index.

    Return the index and the digests of all blobs below it.
    """
    if not targets:
        raise BuildError("A bundle needs at least one target.")
    config = existing.config if existing else store.add_document(program, media_types.PROGRAM)
    digests = {*existing.digests} if existing else set()
    manifests = [*existing.manifests] if existing else []
    for entry in targets:
        target = store.add_document(entry.target, media_types.TARGET)
        layers = list({layer.digest: layer for layer in (target, *entry.layers)}.values())
        for layer in layers:
            if layer.digest not in store:
                raise BuildError(f"Target {entry.target.name!r} lists a blob that was never added: {layer.digest}.")
        annotations = {media_types.ANNOTATION_TARGET: entry.target.name}
        own = entry.config or config
        document = Manifest(2, media_types.OCI_MANIFEST, media_types.BUNDLE, own, layers, annotations)
        manifest = store.add_document(document, media_types.OCI_MANIFEST)
        digests.update((manifest.digest, own.digest, *(layer.digest for layer in layers)))
        # No artifactType here: copying tools (skopeo) drop it from these descriptors, which changes the bundle's digest.
        manifests.append(Descriptor(manifest.media_type, manifest.digest, manifest.size, annotations, entry.platform))
    title = {media_types.ANNOTATION_TITLE: program.name} if program.name else {}
    index = store.add_document(ImageIndex(2, manifests, media_types.OCI_INDEX, media_types.BUNDLE, title), media_types.OCI_INDEX)
    return Descriptor(index.media_type, index.digest, index.size, artifact_type=media_types.BUNDLE), digests


def _write_file(path: Path, store: BlobStore, top: bytes, digests: Sequence[str]) -> None:
    _check_tar_limits(store, digests)
    with temporary_file(path.parent) as temporary:
        file = temporary.file
        for digest in digests:
            file.write(header("blobs/sha256/" + hex_part(digest), store.size(digest)))
            store.copy(digest, file)
            file.write(bytes(-store.size(digest) % BLOCK))
        for name, data in (("index.json", top), ("oci-layout", MARKER)):
            file.write(header(name, len(data)) + data + bytes(-len(data) % BLOCK))
        file.write(bytes(2 * BLOCK))
        temporary.move_to(path, durable=True)


def _write_directory(path: Path, store: BlobStore, top: bytes, digests: Sequence[str]) -> None:
    with temporary_directory(path.parent, 0o777) as temporary:
        blobs = temporary / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        for digest in digests:
            with open(blobs / hex_part(digest), "xb") as file:
                store.copy(digest, file)
        (temporary / "index.json").write_bytes(top)
        (temporary / "oci-layout").write_bytes(MARKER)
        replace_directory(temporary, path)


def _check_tar_limits(store: BlobStore, digests: Sequence[str]) -> None:
    if len(digests) + 2 > MAX_ENTRIES:
        raise BuildError(f"The bundle has {len(digests)} blobs; a bundle file holds {MAX_ENTRIES}.")
    for digest in digests:
        if store.size(digest) > MAX_SIZE:
            raise BuildError(
                f"Blob {digest} has {store.size(digest)} bytes; a bundle file holds blobs of up to {MAX_SIZE}.",
                hint="Write a directory instead: give an output path that ends in '/'.",
            )

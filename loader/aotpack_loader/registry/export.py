"""Writes a bundle of the cache to a file or directory of the user's: complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..archive.digest import bad_blob, check_size, hex_part
from ..archive.tar import BLOCK, MAX_SIZE
from ..archive.tar_header import header
from ..archive.temporaries import TemporaryFile, replace_directory, temporary_directory, temporary_file
from ..errors import AotpackError, RegistryError
from ..format.schema import Descriptor
from .download import WriteError

_MARKER = b'{"imageLayoutVersion":"1.0.0"}'
_PIECE = 1 << 30


class Part(NamedTuple):
    """Bytes ``[offset, offset + size)`` of a file that a blob goes to."""

    descriptor: Descriptor
    path: Path
    offset: int


Fetch = Callable[[Sequence[Part]], None]


def export(
    blobs: Path, descriptors: Iterable[Descriptor], index: bytes, out: str | os.PathLike[str], fetch: Fetch | None = None
) -> Path:
    """Write a bundle of ``descriptors`` and the ``index.json`` of those bytes to ``out``, and return its path.

    The blobs are copied from the folder ``blobs``, and ``fetch`` writes those that it lacks. A path
    that ends in ``/``, or is a directory, asks for an unpacked bundle.

    Raises:
        RegistryError: it cannot be written, or holds something else.
    """
    path = Path(os.path.abspath(out))
    as_directory = os.fspath(out).endswith("/") or path.is_dir()
    wanted = {descriptor.digest: descriptor for descriptor in descriptors}
    try:
        if as_directory:
            _refuse_foreign(path)
            with temporary_directory(path.parent, 0o755) as folder:
                missing = _write_directory(folder, blobs, [wanted[digest] for digest in sorted(wanted)], index)
                _fetch(missing, fetch)
                replace_directory(folder, path)
        else:
            with temporary_file(path.parent) as temporary:
                missing = _write_file(temporary, blobs, [wanted[digest] for digest in sorted(wanted)], index)
                _fetch(missing, fetch)
                temporary.move_to(path, durable=True)
    except (OSError, WriteError) as error:
        if isinstance(error, AotpackError):
            raise
        cause = error.error if isinstance(error, WriteError) else error
        raise RegistryError(f"The bundle {path} cannot be written: {cause.strerror}.") from error
    return path


def _fetch(missing: Sequence[Part], fetch: Fetch | None) -> None:
    if missing:
        if fetch is None:
            raise bad_blob(missing[0].descriptor, "it is missing")
        fetch(missing)


def _write_directory(path: Path, source: Path, descriptors: list[Descriptor], index: bytes) -> list[Part]:
    """Write an unpacked bundle. Returns the blobs that are missing, for which there are empty files."""
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    missing = []
    for descriptor in descriptors:
        target = blobs / hex_part(descriptor.digest)
        with open(target, "xb") as file:
            if not _append(file, source, descriptor):
                missing.append(Part(descriptor, target, 0))
    (path / "index.json").write_bytes(index)
    (path / "oci-layout").write_bytes(_MARKER)
    return missing


def _write_file(temporary: TemporaryFile, source: Path, descriptors: list[Descriptor], index: bytes) -> list[Part]:
    """Write a packed bundle. Returns the blobs that are missing, for which there are holes."""
    file = temporary.file
    missing = []
    for descriptor in descriptors:
        if descriptor.size > MAX_SIZE:
            hint = "Pull into a directory instead: give an output path that ends in '/'."
            raise RegistryError(f"The blob {descriptor.digest} is too large for a bundle file.", hint=hint)
        file.write(header("blobs/sha256/" + hex_part(descriptor.digest), descriptor.size))
        start = file.tell()
        if not _append(file, source, descriptor):
            missing.append(Part(descriptor, temporary.path, start))
            file.seek(start + descriptor.size)
        file.write(bytes(-descriptor.size % BLOCK))
    for name, data in (("index.json", index), ("oci-layout", _MARKER)):
        file.write(header(name, len(data)) + data + bytes(-len(data) % BLOCK))
    file.write(bytes(2 * BLOCK))
    file.flush()
    return missing


def _append(file: BinaryIO, source: Path, descriptor: Descriptor) -> bool:
    """Append a blob, inside the kernel where it can do so. Returns whether ``source`` has it."""
    file.flush()
    path = source / hex_part(descriptor.digest)
    if not path.exists():
        return False
    with open(path, "rb", buffering=0) as blob:
        left = os.fstat(blob.fileno()).st_size
        check_size(left, descriptor)
        while left:
            copied = os.sendfile(file.fileno(), blob.fileno(), None, min(left, _PIECE))
            if not copied:
                hint = "Run `aotpack cache verify`."
                raise RegistryError(f"The blob {descriptor.digest} in the cache has become shorter.", hint=hint)
            left -= copied
    file.seek(0, os.SEEK_END)
    return True


def _refuse_foreign(path: Path) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise RegistryError(f"{path} is not a directory.")
    if path.is_dir():
        names = {entry.name for entry in path.iterdir()}
        if names and names != {"blobs", "index.json", "oci-layout"}:
            raise RegistryError(f"The directory {path} is not empty and holds no bundle.", hint="Choose another directory.")

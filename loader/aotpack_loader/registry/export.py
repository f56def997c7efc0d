"""Writes a bundle of the cache to a file or directory of the user's: complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from ..archive.digest import hex_part
from ..archive.tar import BLOCK, MAX_SIZE
from ..archive.tar_header import header
from ..archive.temporaries import replace_directory, temporary_directory, temporary_file
from ..errors import RegistryError
from ..format.schema import Descriptor

_MARKER = b'{"imageLayoutVersion":"1.0.0"}'
_PIECE = 1 << 30


def export(source: Path, descriptors: Iterable[Descriptor], out: str | os.PathLike[str]) -> Path:
    """Copy the blobs ``descriptors`` of the unpacked bundle ``source`` to ``out`` and return its path.

    A path that ends in ``/``, or is a directory, asks for an unpacked bundle.

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
                _write_directory(folder, source, sorted(wanted))
                replace_directory(folder, path)
        else:
            with temporary_file(path.parent) as temporary:
                _write_file(temporary.file, source, [wanted[digest] for digest in sorted(wanted)])
                temporary.move_to(path, durable=True)
    except OSError as error:
        if isinstance(error, RegistryError):
            raise
        raise RegistryError(f"The bundle {path} cannot be written: {error.strerror}.") from error
    return path


def _write_directory(path: Path, source: Path, digests: list[str]) -> None:
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for digest in digests:
        with open(blobs / hex_part(digest), "xb") as file:
            _append(file, source, digest)
    (path / "index.json").write_bytes((source / "index.json").read_bytes())
    (path / "oci-layout").write_bytes(_MARKER)


def _write_file(file: BinaryIO, source: Path, descriptors: list[Descriptor]) -> None:
    for descriptor in descriptors:
        if descriptor.size > MAX_SIZE:
            hint = "Pull into a directory instead: give an output path that ends in '/'."
            raise RegistryError(f"The blob {descriptor.digest} is too large for a bundle file.", hint=hint)
        file.write(header("blobs/sha256/" + hex_part(descriptor.digest), descriptor.size))
        _append(file, source, descriptor.digest)
        file.write(bytes(-descriptor.size % BLOCK))
    for name, data in (("index.json", (source / "index.json").read_bytes()), ("oci-layout", _MARKER)):
        file.write(header(name, len(data)) + data + bytes(-len(data) % BLOCK))
    file.write(bytes(2 * BLOCK))


def _append(file: BinaryIO, source: Path, digest: str) -> None:
    """Append a blob, inside the kernel where it can do so."""
    file.flush()
    with open(source / "blobs" / "sha256" / hex_part(digest), "rb", buffering=0) as blob:
        left = os.fstat(blob.fileno()).st_size
        while left:
            copied = os.sendfile(file.fileno(), blob.fileno(), None, min(left, _PIECE))
            if not copied:
                raise RegistryError(f"The blob {digest} in the cache has become shorter.", hint="Run `aotpack cache verify`.")
            left -= copied
    file.seek(0, os.SEEK_END)


def _refuse_foreign(path: Path) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise RegistryError(f"{path} is not a directory.")
    if path.is_dir():
        names = {entry.name for entry in path.iterdir()}
        if names and names != {"blobs", "index.json", "oci-layout"}:
            raise RegistryError(f"The directory {path} is not empty and holds no bundle.", hint="Choose another directory.")

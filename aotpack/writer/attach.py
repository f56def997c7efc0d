"""Adds attachments to a bundle that exists, without copying its weights where the file system allows.

The bundle's own blobs and its digest stay as they are. Of a directory only ``index.json`` is
replaced. A file is cloned, and its end is written anew: blobs of attachments, ``index.json`` and
``oci-layout`` come last in it. On a file system that cannot clone (ext4, tmpfs), the kernel copies
the file once. Nothing is hashed again. The path is replaced in one step, so a reader sees the old
file or the new one.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from aotpack_loader.archive.attachments import NewAttachment
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.digest import hex_part
from aotpack_loader.archive.tar import BLOCK
from aotpack_loader.archive.tar_header import header
from aotpack_loader.archive.temporaries import temporary_file
from aotpack_loader.errors import BuildError

from .bundle import MARKER, top_index

_CLONE: Final = 0x40049409
"""``FICLONE`` of Linux: the new file shares the blocks of the old one."""
_BLOBS: Final = "blobs/sha256/"


def attach(path: str | os.PathLike[str], new: Sequence[NewAttachment], *, drop: Sequence[str] = ()) -> None:
    """Add attachments to the bundle at ``path``, and drop some of those it has.

    Args:
        path: a bundle file or an unpacked directory.
        new: what to add. One that is there already is not added again.
        drop: digests of the manifests of attachments to leave out.

    Raises:
        BundleError: ``path`` is no bundle.
        BuildError: it cannot be written.
    """
    out = Path(os.path.realpath(path))
    with Bundle.open(out) as bundle:
        kept = [entry for entry in bundle.beside if entry.digest not in drop]
        known = {entry.digest for entry in kept}
        added = [each for each in new if each.descriptor.digest not in known]
        top = top_index(bundle.index, [*kept, *(each.descriptor for each in added)])
        blobs = {digest: data for each in added for digest, data in each.blobs.items()}
        try:
            if out.is_dir():
                _extend_directory(out, blobs, top)
            else:
                _rewrite_file(out, bundle.entries(), blobs, top)
        except OSError as error:
            raise BuildError(f"The bundle {out} cannot be written: {error.strerror or error}.") from error


def _extend_directory(folder: Path, blobs: Mapping[str, bytes], top: bytes) -> None:
    """Write the blobs, then ``index.json``. What a crash leaves is the old bundle, with blobs that nothing lists."""
    for digest, data in blobs.items():
        _replace(folder / "blobs" / "sha256" / hex_part(digest), data)
    _replace(folder / "index.json", top)


def _replace(path: Path, data: bytes) -> None:
    with temporary_file(path.parent) as temporary:
        temporary.file.write(data)
        temporary.move_to(path, durable=True)


def _rewrite_file(path: Path, entries: Mapping[str, tuple[int, int]], blobs: Mapping[str, bytes], top: bytes) -> None:
    """Write ``path`` anew: what comes before the first entry that changes, and then the rest in order."""
    ordered = sorted(entries.items(), key=lambda item: item[1])
    changed = [name for name, _ in ordered if not name.startswith(_BLOBS)]
    end = min(entries[name][0] - BLOCK for name in changed)
    later = [(name, bounds) for name, bounds in ordered if bounds[0] > end and name.startswith(_BLOBS)]
    new = {_BLOBS + hex_part(digest): data for digest, data in blobs.items()}
    with open(path, "rb", buffering=0) as source, temporary_file(path.parent) as temporary:
        handle = temporary.file.fileno()  # written to without the buffer
        os.fchmod(handle, os.fstat(source.fileno()).st_mode & 0o777)
        _clone(source.fileno(), handle, end)
        os.lseek(handle, end, os.SEEK_SET)
        for name, (start, stop) in later:
            _write(handle, header(name, stop - start))
            _copy(source.fileno(), handle, start, os.lseek(handle, 0, os.SEEK_CUR), stop - start)
            os.lseek(handle, 0, os.SEEK_END)
            _write(handle, bytes(-(stop - start) % BLOCK))
        for name in sorted(name for name in new if name not in entries):
            _append(handle, name, new[name])
        _append(handle, "index.json", top)
        _append(handle, "oci-layout", MARKER)
        _write(handle, bytes(2 * BLOCK))
        temporary.move_to(path, durable=True)


def _append(handle: int, name: str, data: bytes) -> None:
    _write(handle, header(name, len(data)) + data + bytes(-len(data) % BLOCK))


def _write(handle: int, data: bytes) -> None:
    """Write all of ``data``. One call may write less, as on a disk that becomes full."""
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def _clone(source: int, target: int, length: int) -> None:
    """Give the empty file ``target`` the first ``length`` bytes of ``source``, shared if the file system can."""
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError:
        _copy(source, target, 0, 0, length)
    else:
        os.ftruncate(target, length)


def _copy(source: int, target: int, start: int, position: int, length: int) -> None:
    """Copy a range from one file to another within the kernel."""
    while length:
        try:
            done = os.copy_file_range(source, target, length, start, position)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            done = os.pwrite(target, os.pread(source, min(length, 1 << 20), start), position)
        if not done:
            raise OSError(errno.EIO, "the bundle became shorter")
        start, position, length = start + done, position + done, length - done

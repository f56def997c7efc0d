"""The cache of blobs and bundles from registries, shared by the processes of one user.

* ``blobs/sha256/<hex>``: complete, checked, read-only;
* ``partial/<hex>``: a download in progress, locked by the process that writes it;
* ``bundles/<hex>/``: unpacked bundles. Their blobs are hard links into ``blobs``.

A file below ``blobs`` or ``bundles`` is renamed or linked there when it is complete, so a reader
never finds half of one. A killed process leaves only a partial file, and the next one continues it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..archive.cache import cache_root, is_private, private_directory
from ..archive.digest import hex_part
from ..archive.temporaries import is_still_at, remove_stale, temporary_file
from ..errors import DirectoryError
from ..format.schema import Descriptor
from .download import Sink, WriteError

_VARIABLE = "AOTPACK_CACHE"
_MARKER = b'{"imageLayoutVersion":"1.0.0"}'


class BlobCache:
    """The blobs and bundles of this user's cache."""

    def __init__(self, root: Path | None = None) -> None:
        """Open the cache below ``root``, by default the user's; creates its directories.

        Raises:
            DirectoryError: a directory cannot be used.
        """
        self.root = private_directory((root or cache_root()) / "registry", _VARIABLE)
        self.partial = private_directory(self.root / "partial", _VARIABLE)
        remove_stale(self.partial)
        self.bundles = private_directory(self.root / "bundles", _VARIABLE)
        self.blobs = private_directory(private_directory(self.root / "blobs", _VARIABLE) / "sha256", _VARIABLE)

    def path(self, digest: str) -> Path:
        """Return the path that the blob has, or would have."""
        return self.blobs / hex_part(digest)

    def has(self, descriptor: Descriptor) -> bool:
        """Whether the blob is there."""
        return _is_here(self.path(descriptor.digest), descriptor)

    def add(self, descriptor: Descriptor, fill: Callable[[Sink], None]) -> bool:
        """Make sure that the blob is there. ``fill`` completes it, from what an earlier process left.

        Only one process at a time fills a blob; others wait for it. Returns whether ``fill`` was called.

        Raises:
            DirectoryError: the cache cannot be written to.
        """
        if self.has(descriptor):
            return False
        with self._translated(), self._locked(descriptor) as handle:
            if handle is None:
                return False
            sink = Sink(handle)
            sink.adopt(min(os.fstat(handle).st_size, descriptor.size))
            try:
                fill(sink)
            except BaseException:
                os.ftruncate(handle, sink.size)  # what is beyond was not hashed
                raise
            os.ftruncate(handle, descriptor.size)
            os.fchmod(handle, 0o400)
            os.fsync(handle)
            os.replace(self.partial / hex_part(descriptor.digest), self.path(descriptor.digest))
        return True

    def add_bytes(self, descriptor: Descriptor, data: bytes) -> None:
        """Keep the checked bytes of a document."""

        def fill(sink: Sink) -> None:
            sink.restart()
            sink.write(data)

        self.add(descriptor, fill)

    def bundle(self, digest: str) -> Path:
        """Return the directory that the bundle has, or would have."""
        return self.bundles / hex_part(digest)

    def mark_used(self, bundle: Path) -> None:
        """Note the time of use, by which `aotpack cache prune` goes. A read-only cache keeps none."""
        try:
            os.utime(bundle)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise

    def link(self, bundle: Path, descriptor: Descriptor) -> None:
        """Give an unpacked bundle of the cache a blob that the cache holds."""
        target = bundle / "blobs" / "sha256" / hex_part(descriptor.digest)
        with self._translated():
            private_directory(target.parent, _VARIABLE)
            if not _is_here(target, descriptor):
                self._link(self.path(descriptor.digest), target)

    def write(self, bundle: Path, index: bytes) -> None:
        """Write the two files that make a directory a bundle. Its documents are linked already."""
        with self._translated():
            for name, data in (("oci-layout", _MARKER), ("index.json", index)):
                path = bundle / name
                try:
                    if path.read_bytes() == data:
                        continue
                except FileNotFoundError:
                    pass
                with temporary_file(self.partial, 0o600) as temporary:
                    temporary.file.write(data)
                    temporary.move_to(path)

    def _link(self, source: Path, target: Path) -> None:
        target.unlink(missing_ok=True)  # it has another size or owner
        try:
            os.link(source, target)
        except FileExistsError:
            return  # another process was faster
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV):
                raise
            with temporary_file(self.partial, 0o400) as temporary, open(source, "rb") as file:
                shutil.copyfileobj(file, temporary.file)  # a file system without hard links
                temporary.move_to(target)

    @contextmanager
    def _locked(self, descriptor: Descriptor) -> Iterator[int | None]:
        """A handle of the blob's partial file, held by this process alone. None: the blob is there now."""
        path = self.partial / hex_part(descriptor.digest)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                if self.has(descriptor):
                    if is_still_at(handle, path):
                        path.unlink()
                    yield None
                    return
                if is_still_at(handle, path):  # else another process finished or removed it while this one waited
                    yield handle
                    return
            finally:
                os.close(handle)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise errors of the file system as ours."""
        try:
            yield
        except (OSError, WriteError) as error:
            from ..errors import AotpackError

            if isinstance(error, AotpackError):
                raise
            cause = error.error if isinstance(error, WriteError) else error
            hint = f"Set {_VARIABLE} to a directory with enough space, or free some with `aotpack cache prune`."
            raise DirectoryError(f"The cache {self.root} cannot be written to: {cause.strerror}.", hint=hint) from error


def _is_here(path: Path, descriptor: Descriptor) -> bool:
    """Whether the file is there, whole, and only this user can write to it."""
    return is_private(path) and os.lstat(path).st_size == descriptor.size

"""An OCI image layout on disk: blobs by descriptor, packed (one ``.aotpack`` file) or unpacked (a directory).

This module opens files, checks bounds and digests, and maps blobs. It does not interpret programs
or targets.

:meth:`Layout.read` checks a blob against its descriptor. :meth:`Layout.map` checks only the size,
so that the time to load weights does not depend on their size.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import stat
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import BundleError, BundleNotFoundError, CorruptBundleError, NotABundleError, Problem
from . import digest, tar

if TYPE_CHECKING:
    from ..format.schema import Descriptor

MAX_INDEX_BYTES = 4 << 20
"""Registries refuse larger manifests, so no index needs more."""
_MAX_MARKER_BYTES = 4096
_CHUNK = 1 << 20
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # NONBLOCK: a FIFO must not hang the loader


class Layout(ABC):
    """An open bundle container. Its views stay valid after :meth:`close`.

    ``path`` is the path that the user passed.
    """

    path: str

    @abstractmethod
    def read_index(self) -> bytes:
        """Return the bytes of ``index.json`` (not covered by any digest)."""

    @abstractmethod
    def read(self, descriptor: Descriptor) -> memoryview:
        """Return a blob, after checking its size and digest.

        Raises:
            CorruptBundleError: it is missing, or has another size or digest.
        """

    @abstractmethod
    def map(self, descriptor: Descriptor) -> memoryview:
        """Return a writable mapping of a blob. Writes stay private to this mapping. Its digest is not checked.

        Each call makes a new mapping, so writes of one model do not affect another. The mapping
        lives as long as its views.

        Raises:
            CorruptBundleError: it is missing, or has another size.
        """

    @abstractmethod
    def copies(self, descriptor: Descriptor, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Hash a blob of any size, and return private, writable copies of sorted ranges of it.

        Raises:
            CorruptBundleError: it is missing, or has another size or digest.
        """

    @abstractmethod
    def has(self, descriptor: Descriptor) -> bool:
        """Whether the layout has a blob of that name. A copy may lack the layers of some targets."""

    @abstractmethod
    def verify(self, descriptor: Descriptor) -> None:
        """Hash a blob of any size in constant memory.

        Raises:
            CorruptBundleError: it is missing, or has another size or digest.
        """

    @abstractmethod
    def entries(self) -> dict[str, tuple[int, int]]:
        """Return the entries of a file by name: their bytes ``[start, stop)``. A directory has none."""

    @abstractmethod
    def status(self) -> os.stat_result:
        """Return the status of the open file or directory."""

    def real_path(self) -> str:
        """Return the absolute path of the open file or directory, without symbolic links.

        Raises:
            BundleError: its path leads to something else by now, or it has been closed.
        """
        found = os.path.realpath(self.path)
        try:
            same = os.path.samestat(os.stat(found), self.status())
        except OSError:
            same = False
        if not same:
            raise BundleError(f"The bundle {self.path!r} was replaced while it was opened.", hint="Load it again.")
        return found

    @abstractmethod
    def close(self) -> None:
        """Release the file handles. May be called twice."""

    def __enter__(self) -> Layout:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_layout(path: str | os.PathLike[str]) -> Layout:
    """Open the bundle file or unpacked bundle directory at ``path``.

    Raises:
        BundleNotFoundError: the path does not exist.
        NotABundleError: it is not a bundle.
        CorruptBundleError: it is damaged.
        BundleError: it cannot be read.
    """
    name = os.fspath(path)
    try:
        handle = os.open(name, _OPEN)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise BundleNotFoundError(f"There is no bundle at {name!r}.") from error
    except OSError as error:
        raise BundleError(f"The bundle {name!r} cannot be read: {error.strerror}.") from error
    try:
        mode = os.fstat(handle).st_mode
        layout: Layout
        if stat.S_ISDIR(mode):
            layout = _DirectoryLayout(name, handle)
        elif stat.S_ISREG(mode):
            layout = _TarLayout(name, handle)
        else:
            raise NotABundleError(f"{name!r} is not a bundle: it is neither a file nor a directory.")
    except OSError as error:  # files of /proc and of broken disks open, and cannot be read
        os.close(handle)
        raise BundleError(f"The bundle {name!r} cannot be read: {error.strerror}.") from error
    except BaseException:
        os.close(handle)
        raise
    return layout


class _TarLayout(Layout):
    def __init__(self, path: str, handle: int) -> None:
        self.path = path
        self._handle = handle
        size = os.fstat(handle).st_size
        block = os.pread(handle, tar.BLOCK, 0)
        if not (tar.is_tar(block) and tar.is_ours(block)):
            from .foreign import foreign_file  # not needed for a bundle

            raise foreign_file(path, block)
        try:
            data = memoryview(mmap.mmap(handle, size, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise BundleError(f"The bundle {path!r} cannot be mapped: {error}.") from error
        self._entries = tar.scan(data)
        marker = self._file("oci-layout", _MAX_MARKER_BYTES) if "oci-layout" in self._entries else None
        _check_marker(path, marker)
        self._finalizer = weakref.finalize(self, os.close, handle)

    def read_index(self) -> bytes:
        return self._file("index.json", MAX_INDEX_BYTES)

    def read(self, descriptor: Descriptor) -> memoryview:
        start, stop = self._bounds(descriptor)
        return _checked(self._handle, start, stop, descriptor)

    def map(self, descriptor: Descriptor) -> memoryview:
        start, stop = self._bounds(descriptor)
        base = start - start % mmap.ALLOCATIONGRANULARITY
        return _map_private(self._handle, stop - base, base)[start - base :]

    def copies(self, descriptor: Descriptor, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        from .checked import checked_ranges  # not needed without integers

        return checked_ranges(_chunks(self._handle, *self._bounds(descriptor), _CHUNK), descriptor, ranges)

    def has(self, descriptor: Descriptor) -> bool:
        return "blobs/sha256/" + digest.hex_part(descriptor.digest) in self._entries

    def verify(self, descriptor: Descriptor) -> None:
        _verify(self._handle, *self._bounds(descriptor), descriptor)

    def entries(self) -> dict[str, tuple[int, int]]:
        return dict(self._entries)

    def status(self) -> os.stat_result:
        return os.fstat(self._handle)

    def close(self) -> None:
        self._finalizer()

    def _bounds(self, descriptor: Descriptor) -> tuple[int, int]:
        if not self._finalizer.alive:
            raise _closed(self.path)
        bounds = self._entries.get("blobs/sha256/" + digest.hex_part(descriptor.digest))
        if bounds is None:
            raise digest.bad_blob(descriptor, "it is missing")
        digest.check_size(bounds[1] - bounds[0], descriptor)
        return bounds

    def _file(self, name: str, limit: int) -> bytes:
        bounds = self._entries.get(name)
        if bounds is None:
            raise CorruptBundleError(f"The bundle {self.path!r} has no {name}.")
        if bounds[1] - bounds[0] > limit:
            raise CorruptBundleError(f"{name} of the bundle is larger than {limit} bytes.")
        return _read(self._handle, *bounds)


class _DirectoryLayout(Layout):
    def __init__(self, path: str, handle: int) -> None:
        self.path = path
        self._root = handle
        try:
            marker = self._read_file("oci-layout", _MAX_MARKER_BYTES)
        except FileNotFoundError:
            marker = None
        if marker is None and "manifest.json" in os.listdir(handle) and "version" in os.listdir(handle):
            raise NotABundleError(
                f"{path!r} is a directory in skopeo's `dir:` form, not an OCI image layout.",
                hint=f"Copy it into a layout: `skopeo copy --all dir:{path} oci:DIRECTORY:TAG`, or `oci-archive:FILE`.",
            )
        _check_marker(path, marker)
        self._finalizer = weakref.finalize(self, os.close, handle)

    def read_index(self) -> bytes:
        try:
            return self._read_file("index.json", MAX_INDEX_BYTES)
        except FileNotFoundError as error:
            raise CorruptBundleError(f"The bundle {self.path!r} has no index.json.") from error

    def read(self, descriptor: Descriptor) -> memoryview:
        handle = self._open_blob(descriptor)
        try:
            return _checked(handle, 0, descriptor.size, descriptor)
        finally:
            os.close(handle)

    def map(self, descriptor: Descriptor) -> memoryview:
        handle = self._open_blob(descriptor)
        try:
            return _map_private(handle, descriptor.size, 0)
        finally:
            os.close(handle)

    def copies(self, descriptor: Descriptor, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        from .checked import checked_ranges

        handle = self._open_blob(descriptor)
        try:
            return checked_ranges(_chunks(handle, 0, descriptor.size, _CHUNK), descriptor, ranges)
        finally:
            os.close(handle)

    def has(self, descriptor: Descriptor) -> bool:
        if not self._finalizer.alive:
            raise _closed(self.path)
        try:
            os.stat("blobs/sha256/" + digest.hex_part(descriptor.digest), dir_fd=self._root, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise digest.bad_blob(descriptor, f"it cannot be read: {error.strerror}") from error
        return True

    def verify(self, descriptor: Descriptor) -> None:
        handle = self._open_blob(descriptor)
        try:
            _verify(handle, 0, descriptor.size, descriptor)
        finally:
            os.close(handle)

    def entries(self) -> dict[str, tuple[int, int]]:
        return {}

    def status(self) -> os.stat_result:
        return os.fstat(self._root)

    def close(self) -> None:
        self._finalizer()

    def _open_blob(self, descriptor: Descriptor) -> int:
        """Return a handle of a blob after checking its size. The caller closes it."""
        if not self._finalizer.alive:
            raise _closed(self.path)
        name = "blobs/sha256/" + digest.hex_part(descriptor.digest)
        try:
            handle = self._open_file(name)
        except FileNotFoundError as error:
            raise digest.bad_blob(descriptor, "it is missing") from error
        try:
            digest.check_size(os.fstat(handle).st_size, descriptor)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _read_file(self, name: str, limit: int) -> bytes:
        handle = self._open_file(name)
        try:
            size = os.fstat(handle).st_size
            if size > limit:
                raise CorruptBundleError(f"{name} of the bundle is larger than {limit} bytes.")
            return _read(handle, 0, size)
        finally:
            os.close(handle)

    def _open_file(self, name: str) -> int:
        """Open a regular file below the root, without following symbolic links."""
        *folders, last = name.split("/")
        parent = os.dup(self._root)
        try:
            for folder in folders:
                child = os.open(folder, _OPEN | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=parent)
                os.close(parent)
                parent = child
            handle = os.open(last, _OPEN | os.O_NOFOLLOW, dir_fd=parent)
        except FileNotFoundError:
            raise
        except OSError as error:
            # O_NOFOLLOW reports a link as ELOOP, or as ENOTDIR if a directory was requested.
            reason = "a symbolic link or not a file" if error.errno in (errno.ELOOP, errno.ENOTDIR) else error.strerror
            raise CorruptBundleError(f"{name} of the bundle {self.path!r} cannot be read: {reason}.") from error
        finally:
            os.close(parent)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise CorruptBundleError(f"{name} of the bundle {self.path!r} is not a regular file.")
        return handle


def _chunks(handle: int, start: int, stop: int, length: int) -> Iterator[bytes]:
    """The bytes ``[start, stop)`` of a file, or fewer if it has shrunk since. Does not move the file position."""
    try:
        while start < stop and (chunk := os.pread(handle, min(length, stop - start), start)):
            yield chunk
            start += len(chunk)
    except OSError as error:
        raise BundleError(f"The bundle cannot be read at byte {start}: {error.strerror}.") from error


def _read(handle: int, start: int, stop: int) -> bytes:
    chunks = list(_chunks(handle, start, stop, stop - start))
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _checked(handle: int, start: int, stop: int, descriptor: Descriptor) -> memoryview:
    """Read and check a blob. The copy keeps the checked bytes even if the file changes later."""
    data = _read(handle, start, stop)
    digest.check(data, descriptor)
    return memoryview(data)


def _verify(handle: int, start: int, stop: int, descriptor: Descriptor) -> None:
    hasher = hashlib.sha256()
    for chunk in _chunks(handle, start, stop, _CHUNK):
        hasher.update(chunk)
    if (found := digest.PREFIX + hasher.hexdigest()) != descriptor.digest:
        raise digest.bad_blob(descriptor, f"its content has digest {found}")


def _map_private(handle: int, length: int, offset: int) -> memoryview:
    if length == 0:
        return memoryview(bytearray())  # an empty mapping is not possible
    try:
        return memoryview(mmap.mmap(handle, length, access=mmap.ACCESS_COPY, offset=offset))
    except (OSError, ValueError) as error:
        raise BundleError(f"A blob of {length} bytes cannot be mapped: {error}.") from error


def _check_marker(path: str, marker: bytes | None) -> None:
    """Refuse a layout whose ``oci-layout`` file is missing or of another version."""
    if marker is None:
        raise NotABundleError(f"{path!r} is not a bundle: it has no oci-layout file.")
    try:
        document = json.loads(marker)
    except (ValueError, RecursionError) as error:
        raise CorruptBundleError("oci-layout of the bundle is not valid JSON.", [Problem("", str(error))]) from error
    version = document.get("imageLayoutVersion") if isinstance(document, dict) else None
    if version != "1.0.0":
        raise CorruptBundleError(f"oci-layout of the bundle has imageLayoutVersion {version!r}, expected '1.0.0'.")


def _closed(path: str) -> BundleError:
    return BundleError(f"The bundle {path!r} has been closed.")

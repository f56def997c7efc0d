"""Downloads one blob into a file: resumed with ``Range``, hashed while it is written, refused if it is another.

The caller names the file and offset, so a blob can go into the cache or straight into a packed bundle.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from typing import Any

from ..archive.digest import PREFIX
from ..errors import AotpackError, RegistryContentError
from ..format.schema import Descriptor
from .client import Repository
from .responses import ERRORS, Response, count_of, drained
from .transport import RETRIED, connection_error

_BLOCK = 1 << 20
_PROGRESS = 1 << 16
"""An attempt that brings less does not count as progress, so that a registry cannot go on for ever."""
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")

Advance = Callable[[int], None]
"""Called with the number of bytes that arrived. Negative: so many must be fetched again."""


class WriteError(Exception):
    """What arrived cannot be written. It is no error of the connection, so nothing is tried again."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


class Sink:
    """The bytes ``[offset, offset + size)`` of an open file, and how many of them are there and hashed."""

    def __init__(self, handle: int, offset: int = 0) -> None:
        self.handle = handle
        self.offset = offset
        self.size = 0
        self.restarts = 0
        self._hasher: Any = hashlib.sha256()

    def adopt(self, size: int) -> None:
        """Take the first ``size`` bytes that an earlier process wrote. They are hashed again."""
        while self.size < size:
            chunk = os.pread(self.handle, min(_BLOCK, size - self.size), self.offset + self.size)
            if not chunk:
                break
            self._hasher.update(chunk)
            self.size += len(chunk)

    def write(self, chunk: bytes) -> None:
        """Append a chunk.

        Raises:
            WriteError: it cannot be written.
        """
        view = memoryview(chunk)
        position = self.offset + self.size
        while view:
            try:
                written = os.pwrite(self.handle, view, position)
            except OSError as error:
                raise WriteError(error) from error
            view, position = view[written:], position + written
        self._hasher.update(chunk)
        self.size += len(chunk)

    def restart(self) -> None:
        """Forget everything."""
        self._hasher = hashlib.sha256()
        self.size = 0
        self.restarts += 1

    def digest(self) -> str:
        """Return the digest of what is there."""
        return PREFIX + str(self._hasher.hexdigest())


def download(repository: Repository, descriptor: Descriptor, sink: Sink, advance: Advance) -> None:
    """Fill ``sink`` with the blob. What it holds already is not fetched again.

    Raises:
        RegistryContentError: the registry sends another blob, even from the start.
        RegistryConnectionError: the connection broke too often without progress.
    """
    advance(sink.size)
    resumed = sink.size > 0
    while True:
        _fill(repository, descriptor, sink, advance)
        if sink.digest() == descriptor.digest:
            return
        found = sink.digest()
        advance(-sink.size)
        sink.restart()
        if not resumed:
            raise _lies(repository, descriptor, f"their digest is {found}")
        resumed = False  # the part of an earlier attempt may be what is wrong


def _fill(repository: Repository, descriptor: Descriptor, sink: Sink, advance: Advance) -> None:
    transport = repository.transport
    request = repository.request("GET", f"blobs/{descriptor.digest}", what=f"the blob {descriptor.digest}")
    failures = 0
    while sink.size < descriptor.size:
        before = sink.size
        after = ""
        error: Exception = ConnectionResetError()
        try:
            with repository.blob(descriptor.digest, sink.size) as response:
                if response.status in RETRIED:
                    after = response.headers.get("Retry-After", "")
                    error = transport.failure(request, drained(response))
                else:
                    after = _take(repository, descriptor, response, sink, advance)
        except ERRORS as raised:
            if isinstance(raised, AotpackError):
                raise
            error = raised
        if sink.size >= descriptor.size:
            return
        failures = 1 if sink.size - before >= _PROGRESS else failures + 1
        if failures >= transport.settings.attempts or sink.restarts >= transport.settings.attempts:
            raise error if isinstance(error, AotpackError) else connection_error(request, error)
        transport.pause(failures, after)


def _take(repository: Repository, descriptor: Descriptor, response: Response, sink: Sink, advance: Advance) -> str:
    """Write what an answer brings. Returns its ``Retry-After``."""
    if response.status == 416 or (response.status == 206 and not _continues(response, descriptor, sink)):
        advance(-sink.size)
        sink.restart()  # the registry disagrees about the size so far: begin again
        return "0"
    if response.status == 200 and sink.size:
        advance(-sink.size)
        sink.restart()  # it ignores ranges
    length = count_of(response, "Content-Length")
    if length is not None and sink.size + length != descriptor.size:
        raise _lies(repository, descriptor, f"there are {sink.size + length} of them")
    for chunk in response.chunks():
        repository.transport.check_stopped()
        if sink.size + len(chunk) > descriptor.size:
            raise _lies(repository, descriptor, "there are more of them")
        sink.write(chunk)
        advance(len(chunk))
    return ""


def _continues(response: Response, descriptor: Descriptor, sink: Sink) -> bool:
    """Whether a partial answer continues where the sink ends."""
    found = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    return found is not None and int(found[1]) == sink.size and found[3] in ("*", str(descriptor.size))


def _lies(repository: Repository, descriptor: Descriptor, what: str) -> RegistryContentError:
    blob = f"the blob {descriptor.digest} of {descriptor.size} bytes"
    return RegistryContentError(
        f"{repository.host}/{repository.name} sent other bytes for {blob}: {what}.",
        hint="The registry or a proxy in between changes content. Nothing of it was kept.",
    )

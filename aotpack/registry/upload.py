"""Uploads one blob: skipped if it exists, mounted from another repository, else sent and resumed after a broken connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from aotpack_loader.errors import RegistryError
from aotpack_loader.format.schema import Descriptor
from aotpack_loader.registry.addresses import split
from aotpack_loader.registry.client import Repository
from aotpack_loader.registry.progress import Outcome
from aotpack_loader.registry.responses import ERRORS, Answer, count_of
from aotpack_loader.registry.transport import Request, connection_error

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PIECE = 1 << 20
_WHOLE = 4 << 20
"""A blob up to this size is sent with the request that closes the upload: one request less."""
_SMALLER = 64 << 20
"""The size of a chunk after a proxy refused a larger body."""


def mount(repository: Repository, digest: str, source: str) -> tuple[bool, str]:
    """Ask for a blob of another repository of the registry.

    Returns whether it was mounted, and else the upload that the registry opened instead, if it did.
    """
    made = repository.request("POST", f"blobs/uploads/?mount={digest}&from={source}", what=f"the blob {digest}")
    request = replace(made, scopes=repository.scopes(source), headers={"Content-Length": "0"})
    answer = repository.transport.fetch(request)
    if answer.status == 201:
        return True, ""
    return False, _location(request, answer) if answer.status == 202 else ""  # else no right to read the source


def _location(request: Request, answer: Answer) -> str:
    location = answer.headers.get("Location", "")
    if not location:
        raise RegistryError(f"{request.where}: the registry opened an upload without an address.")
    split(location, request.host)
    return location


class Upload:
    """The upload of one blob. ``read`` returns its bytes, and is called only if they are sent."""

    def __init__(
        self, repository: Repository, descriptor: Descriptor, read: Callable[[], memoryview], advance: Callable[[int], None]
    ) -> None:
        self._repository = repository
        self._transport = repository.transport
        self._descriptor = descriptor
        self._read = read
        self._data = memoryview(b"")
        self._advance = advance
        self._sent = 0
        self._chunk = self._transport.settings.chunk_size
        self._scopes = repository.scopes()

    def run(self, mounts: tuple[str, ...] = ()) -> Outcome:
        """Send the blob, unless it is there or in a repository of ``mounts``.

        Raises:
            RegistryError: the registry refused it, or the connection broke too often.
        """
        if self._repository.has_blob(self._descriptor.digest, self._descriptor.size):
            return "exists"
        location = ""
        for source in mounts:
            mounted, location = mount(self._repository, self._descriptor.digest, source)
            if mounted:
                return "mounted"
            if location:
                break
        self._data = self._read()
        self._send(location or self._begin())
        return "uploaded"

    def _begin(self) -> str:
        request = self._request("POST", "blobs/uploads/", headers={"Content-Length": "0"})
        answer = self._transport.fetch(request)
        if answer.status != 202:
            raise self._transport.failure(request, answer)
        if self._chunk:
            self._chunk = max(self._chunk, count_of(answer, "OCI-Chunk-Min-Length") or 0)
        return _location(request, answer)

    def _send(self, location: str) -> None:
        """Send the bytes and close the upload. After a failure it goes on where the registry says it is.

        Failures count from the last time that the registry had more bytes than ever before.
        """
        failures = confirmed = 0
        while True:
            error: Exception = ConnectionResetError()
            request = self._request("PUT", location)
            try:
                if len(self._data) > _WHOLE or self._sent:
                    while self._sent < len(self._data):
                        location = self._patch(location)
                request, answer = self._close(location)
                if answer.status in (201, 204):
                    self._advance(len(self._data) - self._sent)
                    return
                if answer.status < 500 and answer.status not in (404, 408, 416, 429):
                    raise self._transport.failure(request, answer)
                error = self._transport.failure(request, answer)
            except ERRORS as raised:
                if isinstance(raised, RegistryError) and not isinstance(raised, ConnectionError):
                    raise
                error = raised
            failures += 1
            if failures >= self._transport.settings.attempts:
                raise error if isinstance(error, RegistryError) else connection_error(request, error)
            self._transport.pause(failures)
            location = self._resume(location)
            if self._sent > confirmed:
                failures, confirmed = 0, self._sent

    def _patch(self, location: str) -> str:
        """Send the next chunk, or all that is left, and return where the upload goes on."""
        stop = min(len(self._data), self._sent + self._chunk) if self._chunk else len(self._data)
        start = self._sent
        headers = {"Content-Range": f"{start}-{stop - 1}", **_octets(stop - start)}
        request = self._request("PATCH", location, headers=headers, body=lambda: self._pieces(start, stop))
        with self._transport.open(request, attempts=1) as response:
            answer = Answer(response.status, response.headers, response.read(1 << 16))
        if answer.status == 413 and (not self._chunk or self._chunk > _SMALLER):
            self._set_back(start)
            self._chunk = _SMALLER
            return self._begin()
        if answer.status in (408, 416, 429) or answer.status >= 500 or (answer.status == 404 and start):
            raise ConnectionResetError  # the registry may know how far it came
        if answer.status != 202:
            raise self._transport.failure(request, answer)
        return _location(request, answer)

    def _close(self, location: str) -> tuple[Request, Answer]:
        """Close the upload, with the bytes that were not sent yet."""
        rest = len(self._data) - self._sent
        separator = "&" if split(location, self._repository.host).query else "?"
        url = f"{location}{separator}digest={self._descriptor.digest}"
        request = self._request("PUT", url, headers=_octets(rest), body=lambda: [self._data[self._sent :]] if rest else [])
        with self._transport.open(request, attempts=1) as response:
            return request, Answer(response.status, response.headers, response.read(1 << 16))

    def _resume(self, location: str) -> str:
        """Ask how much of the upload has arrived. Begins anew if the registry does not know it."""
        request = self._request("GET", location)
        answer = self._transport.fetch(request)
        arrived = answer.headers.get("Range", "").removeprefix("bytes=").partition("-")[2]
        if answer.status in (202, 204) and len(arrived) < 20 and arrived.isascii() and arrived.isdigit():
            # An upload of nothing is "0-0", which is also that of one byte: sending one byte twice would spoil it.
            count = int(arrived) + 1 if int(arrived) else 0
            if count <= len(self._data) and count:
                self._set_back(count)
                return _location(request, answer)
        self._set_back(0)
        return self._begin()

    def _set_back(self, count: int) -> None:
        self._advance(count - self._sent)
        self._sent = count

    def _pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        for position in range(start, stop, _PIECE):
            self._transport.check_stopped()
            piece = self._data[position : min(position + _PIECE, stop)]
            yield piece
            self._sent += len(piece)
            self._advance(len(piece))

    def _request(
        self,
        method: str,
        url: str,
        *,
        scopes: tuple[str, ...] = (),
        headers: dict[str, str] | None = None,
        body: Callable[[], Iterable[ReadableBuffer]] | None = None,
    ) -> Request:
        made = self._repository.request(method, url, what=f"the blob {self._descriptor.digest}", headers=headers)
        if url.startswith(("/", "http://", "https://")):
            made = replace(made, url=url)
        return replace(made, scopes=scopes or self._scopes, body=body)


def _octets(count: int) -> dict[str, str]:
    return {"Content-Type": "application/octet-stream", "Content-Length": str(count)}

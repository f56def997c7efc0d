"""Answers of registries: read in pieces, each within its time, and never more than was asked for."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .deadlines import Watch
from .http_library import urllib3

ERRORS = (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)
"""What a connection can raise. ``ssl.SSLError`` and time-outs are among them."""
MAX_ERROR_BYTES = 1 << 16
_BLOCK = 1 << 20
_LEAST_BLOCK = 1 << 16
_QUICK = 1.0


@dataclass(frozen=True)
class Answer:
    """A whole answer: its status, headers and body."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Response:
    """The status, headers and unread body of an answer."""

    def __init__(self, raw: Any, url: str, watch: Watch, patience: float) -> None:
        self._raw = raw
        self._watch = watch
        self._patience = patience
        self.status: int = raw.status
        self.headers: Mapping[str, str] = raw.headers
        self.url = url

    def challenges(self) -> list[str]:
        found: list[str] = self._raw.headers.getlist("WWW-Authenticate")
        return found

    def chunks(self) -> Iterator[bytes]:
        """Yield the body. Raises one of :data:`ERRORS` if the connection breaks, or a block takes too long."""
        size = _LEAST_BLOCK
        while True:
            start = time.monotonic()
            with self._watch.limit(self._raw.wire, self._patience):
                chunk: bytes = self._raw.read(size, decode_content=False)
            if not chunk:
                return
            yield chunk
            size = min(2 * size, _BLOCK) if time.monotonic() - start < _QUICK else _LEAST_BLOCK

    def read(self, limit: int) -> bytes:
        """Return the body, at most ``limit`` bytes and one more. All of it must arrive in the time of one block."""
        found: list[bytes] = []
        size = 0
        with self._watch.limit(self._raw.wire, self._patience):
            while size <= limit and (chunk := self._raw.read(_LEAST_BLOCK, decode_content=False)):
                found.append(chunk)
                size += len(chunk)
        return b"".join(found)[: limit + 1]

    def close(self) -> None:
        """Return the connection to its pool if little of the body is left, else close it."""
        left = self._raw.length_remaining
        try:
            if left is not None and left <= MAX_ERROR_BYTES:
                self.read(MAX_ERROR_BYTES)  # also one of no bytes must be read
                self._raw.release_conn()
                return
        except ERRORS:
            pass  # nobody wants the rest
        self._raw.close()


def drained(response: Response) -> Answer:
    """Return a refused answer with the beginning of its body, as far as it can be read."""
    try:
        data = response.read(MAX_ERROR_BYTES)
    except ERRORS:
        data = b""  # the status says enough
    return Answer(response.status, response.headers, data)


def count_of(answer: Answer | Response, name: str) -> int | None:
    """Return a header that counts bytes. None: it is missing, or no number that a count can be."""
    text = answer.headers.get(name, "")
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else None


def message(data: bytes) -> str:
    """Return what a registry says about a failed request, as one short printable line."""
    try:
        errors = json.loads(data)["errors"]
        text = "; ".join(f"{error.get('code', '')}: {error.get('message', '')}" for error in errors[:3])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""  # a body of another kind, such as a proxy's page
    return printable(text)[:300]


def printable(text: str) -> str:
    """Return text of a registry for a message: control characters are blanks."""
    return "".join(character if character.isprintable() else " " for character in text)

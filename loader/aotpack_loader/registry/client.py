"""The distribution API of one repository: manifests, blobs, tags and referrers, for reading.

Nothing here decides what to fetch. Bytes of manifests are checked against their digest before they are parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin, urlsplit

from ..archive.digest import is_digest, sha256
from ..errors import RegistryContentError, RegistryNotFoundError
from ..format import media_types
from .reference import Reference
from .transport import RETRIED, Request, Response, Transport, drained

MAX_MANIFEST_BYTES: Final = 4 << 20
"""Registries refuse larger manifests."""
_MAX_LIST_BYTES = 16 << 20
_MAX_PAGES = 1000
_ACCEPTED = ", ".join(
    (
        media_types.OCI_INDEX,
        media_types.OCI_MANIFEST,
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_NEXT = re.compile(r"\s*<([^>]*)>\s*;.*\brel=\"?next\"?")


@dataclass(frozen=True)
class RemoteManifest:
    """The bytes of a manifest or index, their media type and digest."""

    data: bytes
    media_type: str
    digest: str


class Repository:
    """One repository of a registry. ``write`` asks for the right to push as well."""

    def __init__(self, transport: Transport, host: str, repository: str, *, write: bool = False) -> None:
        self.transport = transport
        self.host = host
        self.name = repository
        self.write = write

    @classmethod
    def of(cls, transport: Transport, reference: Reference, *, write: bool = False) -> Repository:
        return cls(transport, reference.host, reference.repository, write=write)

    def request(self, method: str, path: str, *, what: str = "", headers: dict[str, str] | None = None) -> Request:
        """Return a request for a path below the repository, such as ``manifests/latest``."""
        return Request(method, self.host, self.name, f"/v2/{self.name}/{path}", self.scopes(), headers or {}, what=what)

    def scopes(self, *sources: str) -> tuple[str, ...]:
        """Return the scopes of a token for this repository, and for reading those of ``sources``."""
        own = f"repository:{self.name}:{'pull,push' if self.write else 'pull'}"
        return (own, *(f"repository:{source}:pull" for source in sources if source != self.name))

    def manifest(self, wanted: str) -> RemoteManifest:
        """Fetch a manifest or index by tag or digest.

        Raises:
            RegistryNotFoundError: there is none.
            RegistryContentError: its bytes do not have the digest, or it is too large.
        """
        request = self.request("GET", f"manifests/{wanted}", what=wanted, headers={"Accept": _ACCEPTED})
        answer = self.transport.fetch(request, MAX_MANIFEST_BYTES)
        if answer.status != 200:
            raise self.transport.failure(request, answer)
        data = answer.data
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        named = answer.headers.get("Docker-Content-Digest", "")
        digest = sha256(data)
        expected = wanted if is_digest(wanted) else named if is_digest(named) else digest
        if digest != expected:
            raise RegistryContentError(
                f"{self.host}/{self.name} sent other bytes for {wanted} than their digest says.",
                hint=f"Expected {expected}, received {digest}. A proxy or the registry changes content; do not use it.",
            )
        return RemoteManifest(data, kind, digest)

    def resolve(self, wanted: str) -> str:
        """Return the digest of a tag without fetching the manifest, where the registry names it."""
        if is_digest(wanted):
            return wanted
        request = self.request("HEAD", f"manifests/{wanted}", what=wanted, headers={"Accept": _ACCEPTED})
        answer = self.transport.fetch(request)
        if answer.status not in (200, 405):
            raise self.transport.failure(request, answer)
        named = answer.headers.get("Docker-Content-Digest", "")
        return named if is_digest(named) else self.manifest(wanted).digest

    @contextmanager
    def blob(self, digest: str, start: int = 0) -> Iterator[Response]:
        """Yield the answer to a request for a blob, from byte ``start`` on: 200, 206, 416, or one that means "later".

        It is sent once. The caller retries, because it knows how much has arrived.
        """
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        request = self.request("GET", f"blobs/{digest}", what=f"the blob {digest}", headers=headers)
        with self.transport.open(request, attempts=1) as response:
            if response.status not in (200, 206, 416, *RETRIED):
                raise self.transport.failure(request, drained(response))
            yield response

    def has_blob(self, digest: str, size: int) -> bool:
        """Whether the registry has a blob.

        Raises:
            RegistryContentError: it has one of another size.
        """
        request = self.request("HEAD", f"blobs/{digest}", what=f"the blob {digest}")
        answer = self.transport.fetch(request)
        if answer.status == 404:
            return False
        if answer.status != 200:
            raise self.transport.failure(request, answer)
        length = answer.headers.get("Content-Length", "")
        if length.isdigit() and int(length) != size:
            raise RegistryContentError(f"{self.host}/{self.name} has {length} bytes for {digest}, which has {size}.")
        return True

    def tags(self) -> list[str]:
        """Return all tags, sorted."""
        found: list[str] = []
        for page in self._pages("tags/list?n=1000", "the tags"):
            tags = page.get("tags") or []
            if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
                raise RegistryContentError(f"{self.host} sent a list of tags that is not understood.")
            found += tags
        return sorted(set(found))

    def referrers(self, digest: str) -> bytes:
        """Return an index that lists what refers to ``digest``, from the API or from the tag that stands for it.

        Empty bytes: nothing does.
        """
        request = self.request("GET", f"referrers/{digest}", what=f"the referrers of {digest}")
        answer = self.transport.fetch(request, MAX_MANIFEST_BYTES)
        if answer.status == 200 and answer.headers.get("Content-Type", "").startswith(media_types.OCI_INDEX):
            return answer.data
        if answer.status not in (200, 400, 404, 405):
            raise self.transport.failure(request, answer)
        try:
            return self.manifest(referrers_tag(digest)).data
        except RegistryNotFoundError:
            return b""

    def _pages(self, path: str, what: str) -> Iterator[dict[str, object]]:
        request = self.request("GET", path, what=what)
        for _ in range(_MAX_PAGES):
            answer = self.transport.fetch(request, _MAX_LIST_BYTES)
            if answer.status != 200:
                raise self.transport.failure(request, answer)
            link = _NEXT.match(answer.headers.get("Link", ""))
            try:
                page = json.loads(answer.data)
            except (ValueError, RecursionError):
                page = None
            if not isinstance(page, dict):
                raise RegistryContentError(f"{self.host} sent {what} in a form that is not understood.")
            yield page
            if link is None:
                return
            following = urlsplit(urljoin(request.url, link[1]))
            request = Request("GET", self.host, self.name, f"{following.path}?{following.query}", self.scopes(), what=what)
        raise RegistryContentError(f"{self.host} sends more than {_MAX_PAGES} pages of {what}.")


def referrers_tag(digest: str) -> str:
    """Return the tag that lists what refers to ``digest`` in a registry without the referrers API."""
    return digest.replace(":", "-", 1)

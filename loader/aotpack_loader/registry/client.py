"""The distribution API of one repository: manifests, blobs, tags and referrers, for reading.

Nothing here decides what to fetch. Bytes of manifests are checked against their digest before they are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from ..archive.digest import is_digest, sha256
from ..errors import CorruptBundleError, RegistryContentError, RegistryNotFoundError
from ..format import media_types
from ..format.codec import decode
from ..format.schema import Descriptor, Document, ImageIndex
from .addresses import join, split
from .reference import Reference, is_tag
from .responses import Answer, Response, count_of, drained
from .transport import RETRIED, Request, Transport

MAX_MANIFEST_BYTES: Final = 4 << 20
"""Registries refuse larger manifests."""
_MAX_LIST_BYTES = 16 << 20
_MAX_PAGES = 1000
"""Lists are bounded in both, because a registry may send pages without end."""
_ACCEPTED = ", ".join(
    (
        media_types.OCI_INDEX,
        media_types.OCI_MANIFEST,
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_NEXT = re.compile(r"\s*<([^>]*)>\s*;.*\brel=\"?next\"?")


T = TypeVar("T", bound=Document)


class _Tags(Document, frozen=True):
    """A page of tags."""

    tags: list[str] | None = None


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
        length = count_of(answer, "Content-Length")
        if length not in (None, size):
            raise RegistryContentError(f"{self.host}/{self.name} has {length} bytes for {digest}, which has {size}.")
        return True

    def tags(self) -> list[str]:
        """Return all tags, sorted."""
        found: set[str] = set()
        for data in self._pages(self.request("GET", "tags/list?n=1000", what="the tags")):
            tags = self._decode(data, _Tags, "a list of tags").tags or []
            if not all(map(is_tag, tags)):
                raise RegistryContentError(f"{self.host}/{self.name} lists something that is no tag.")
            found.update(tags)
        return sorted(found)

    def referrers(self, digest: str) -> list[Descriptor]:
        """Return what refers to ``digest``, from the API or from the tag that stands for it.

        A list of that tag may have entries of other subjects.

        Raises:
            RegistryContentError: the list is not understood, or never ends.
        """
        request = self.request("GET", f"referrers/{digest}", what=f"the referrers of {digest}")
        answer = self.transport.fetch(request, MAX_MANIFEST_BYTES)
        if answer.status == 200 and answer.headers.get("Content-Type", "").startswith(media_types.OCI_INDEX):
            pages: Iterable[bytes] = self._pages(request, answer)
        elif answer.status in (200, 400, 404, 405):
            try:
                pages = [self.manifest(referrers_tag(digest)).data]
            except RegistryNotFoundError:
                return []
        else:
            raise self.transport.failure(request, answer)
        return [entry for data in pages for entry in self._decode(data, ImageIndex, "a list of referrers").manifests]

    def _decode(self, data: bytes, kind: type[T], what: str) -> T:
        try:
            return decode(data, kind, where=what)
        except CorruptBundleError as error:
            raise RegistryContentError(f"{self.host}/{self.name} sent {what} that is not understood.", error.problems) from error

    def _pages(self, request: Request, answer: Answer | None = None) -> Iterator[bytes]:
        """Yield the pages of a list, of which ``answer`` is the first, if it is there."""
        size = 0
        seen = set()
        for _ in range(_MAX_PAGES):
            seen.add(request.url)
            if answer is None:
                answer = self.transport.fetch(request, MAX_MANIFEST_BYTES)
            if answer.status != 200:
                raise self.transport.failure(request, answer)
            size += len(answer.data)
            if size > _MAX_LIST_BYTES:
                break
            yield answer.data
            link = _NEXT.match(answer.headers.get("Link", ""))
            if link is None:
                return
            # Only path and query count, so that no other host is asked.
            following = split(join(request.url, link[1], self.host), self.host)
            request = replace(request, url=f"/{following.path.lstrip('/')}?{following.query}")
            if request.url in seen:
                raise RegistryContentError(f"{request.where}: the list goes round in a circle.")
            answer = None
        raise RegistryContentError(f"{request.where}: the list has more than {_MAX_PAGES} pages or {_MAX_LIST_BYTES} bytes.")


def referrers_tag(digest: str) -> str:
    """Return the tag that lists what refers to ``digest`` in a registry without the referrers API."""
    return digest.replace(":", "-", 1)

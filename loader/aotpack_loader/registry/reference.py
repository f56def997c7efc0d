"""References of bundles in registries: ``oci://host[:port]/repository[:tag][@sha256:…]``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from ..archive.digest import is_digest
from ..errors import BundleReferenceError

SCHEME: Final = "oci://"
_HOST = re.compile(
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?"
)
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_MAX_REPOSITORY = 255
_FORM = "Write oci://host/repository:tag or oci://host/repository@sha256:<64 hex digits>."


@dataclass(frozen=True)
class Reference:
    """A repository of a registry, and what is meant in it: a tag, a digest, both or neither."""

    host: str
    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read a reference.

        Raises:
            BundleReferenceError: it is not one. A user name or password in it is not repeated.
        """
        if not text.startswith(SCHEME):
            raise BundleReferenceError(f"{text.partition('://')[0]!r} is not a reference of a registry.", hint=_FORM)
        host, slash, rest = text[len(SCHEME) :].partition("/")
        if "@" in host:
            hint = "Log in with `docker login`, `skopeo login` or a credential helper, and leave the credentials out."
            raise BundleReferenceError("The reference contains a user name or a password, or lacks a repository.", hint=hint)
        rest, at, digest = rest.partition("@")
        repository, colon, tag = rest.partition(":")
        host = host.lower()  # hosts have no case, and policies, credentials and lock files are found by them
        problem = _problem(host, slash, repository, colon, tag, at, digest)
        if problem:
            raise BundleReferenceError(f"{text!r} is not a reference of a registry: {problem}.", hint=_FORM)
        if host in ("docker.io", "index.docker.io") and "/" not in repository:
            repository = f"library/{repository}"
        return cls(host, repository, tag, digest)

    @property
    def wanted(self) -> str:
        """What to ask the registry for: the digest, which wins, or the tag.

        Raises:
            BundleReferenceError: the reference has neither.
        """
        if not (self.digest or self.tag):
            raise BundleReferenceError(f"{self} has neither a tag nor a digest.", hint=_FORM)
        return self.digest or self.tag

    @property
    def repository_url(self) -> str:
        """The registry and repository, without tag and digest, as policies match them."""
        return f"{SCHEME}{self.host}/{self.repository}"

    @property
    def name(self) -> str:
        """The reference without its digest, as a lock file names it."""
        return str(replace(self, digest=""))

    def at(self, digest: str) -> Reference:
        """Return this reference with a digest."""
        return replace(self, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{SCHEME}{self.host}/{self.repository}{tag}{digest}"


def is_reference(text: object) -> bool:
    """Whether ``text`` names a bundle in a registry rather than a file."""
    return isinstance(text, str) and text.startswith(SCHEME)


def is_tag(text: str) -> bool:
    """Whether ``text`` has the form of a tag."""
    return _TAG.fullmatch(text) is not None


def _problem(host: str, slash: str, repository: str, colon: str, tag: str, at: str, digest: str) -> str:
    if not _HOST.fullmatch(host):
        return f"{host!r} is not a host name"
    if not slash or not repository:
        return "it names no repository"
    if len(repository) > _MAX_REPOSITORY or not _REPOSITORY.fullmatch(repository):
        return f"{repository!r} is not a repository name (lower-case letters, digits, '.', '_', '-' and '/')"
    if colon and not _TAG.fullmatch(tag):
        return f"{tag!r} is not a tag"
    if at and not is_digest(digest):
        return f"{digest!r} is not a sha256 digest"
    return ""

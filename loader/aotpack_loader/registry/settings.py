"""How registries are reached: plain HTTP, CA files, mirrors, time-outs and concurrency.

Variables set the defaults, so that a fleet can be configured once:

* ``AOTPACK_PLAIN_HTTP``: hosts that are reached without TLS, separated by commas;
* ``AOTPACK_CA_FILE``: a PEM file of certificate authorities, instead of the system's;
* ``AOTPACK_MIRRORS``: ``host=mirror[/prefix]`` pairs, separated by commas, asked first by a pull.

Proxies come from ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY``.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import RegistryError
from .reference import Reference


@dataclass(frozen=True)
class Settings:
    """Options of the connection to registries. Times are in seconds."""

    plain_http: frozenset[str] = frozenset()
    ca_file: str = ""
    mirrors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    concurrency: int = 4
    attempts: int = 6
    connect_timeout: float = 15.0
    read_timeout: float = 60.0
    patience: float = 120.0
    """The longest time for the head of an answer, for a whole document, and for 64 KiB of a blob."""
    back_off: float = 0.5
    """The first pause before a retry. Each further one is twice as long, up to 30 s."""
    chunk_size: int = 0
    """The largest body of one request of an upload, in bytes. 0: a blob is one body."""

    @classmethod
    def from_environment(cls, *, plain_http: Sequence[str] = (), ca_file: str = "", mirrors: Sequence[str] = ()) -> Settings:
        """Return the settings of the environment, with those that were passed in addition.

        Raises:
            RegistryError: a mirror has not the form ``host=mirror``.
        """
        hosts = [*_words(os.environ.get("AOTPACK_PLAIN_HTTP", "")), *plain_http]
        found: dict[str, list[str]] = {}
        for pair in (*mirrors, *_words(os.environ.get("AOTPACK_MIRRORS", ""))):
            host, equals, mirror = pair.partition("=")
            if not (host and equals and mirror):
                raise RegistryError(f"{pair!r} is not a mirror.", hint="Write HOST=MIRROR, such as docker.io=mirror.lan:5000.")
            found.setdefault(host, []).append(mirror.rstrip("/"))
        return cls(frozenset(hosts), ca_file or os.environ.get("AOTPACK_CA_FILE", ""), found)

    def sources(self, reference: Reference) -> list[Reference]:
        """Return where a pull looks for ``reference``: its mirrors in order, then its own registry."""
        found = []
        for mirror in self.mirrors.get(reference.host, ()):
            host, _, prefix = mirror.partition("/")
            repository = f"{prefix}/{reference.repository}" if prefix else reference.repository
            found.append(Reference.parse(str(Reference(host, repository, reference.tag, reference.digest))))
        return [*found, reference]


def is_loopback(host: str) -> bool:
    """Whether ``host[:port]`` is this machine, by its text alone."""
    name = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]

"""URLs that a registry sends: redirects, token servers and addresses of uploads. None is trusted."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

from ..errors import RegistryContentError

_HOST: Final = re.compile(r"(\[[0-9A-Za-z:.%_~-]*\]|[0-9A-Za-z.%_~-]*)(:[0-9]*)?")
"""A host and a port of a URL, by RFC 3986 less what no host name has."""


def split(url: str, host: str) -> SplitResult:
    """Return the parts of a URL that ``host`` sent.

    Raises:
        RegistryContentError: it is none.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # parsed when it is asked for
    except ValueError:
        raise _not_understood(host) from None
    # urllib3 ends the host at a backslash, where urlsplit goes on: what was checked would be another host than what is asked.
    if not url.isprintable() or "\\" in url or not _HOST.fullmatch(parts.netloc.rpartition("@")[2]):
        raise _not_understood(host)
    return parts


def join(base: str, url: str, host: str) -> str:
    """Return ``url``, which ``host`` sent and which may be relative to ``base``.

    Raises:
        RegistryContentError: it is none.
    """
    try:
        return urljoin(base, url)
    except ValueError:
        raise _not_understood(host) from None


def origin(parts: SplitResult) -> tuple[str, str, int]:
    """Return scheme, host and port, by which credentials are kept apart."""
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def host_and_port(parts: SplitResult) -> str:
    """Return ``host[:port]``, without a user name or password."""
    return parts.netloc.rpartition("@")[2]


def is_inside(parts: SplitResult) -> bool:
    """Whether a URL has a literal address of this machine or of its network segment. Names are not resolved."""
    name = (parts.hostname or "").rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and (address.is_loopback or address.is_link_local or address.is_unspecified)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that the system takes a name for, without asking anybody. ``0x7f.1`` is one, too."""
    try:
        found = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        try:
            return ipaddress.IPv4Address(socket.inet_aton(name))
        except (OSError, ValueError):
            return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def _not_understood(host: str) -> RegistryContentError:
    return RegistryContentError(f"The registry {host} sent an address that is not understood.")

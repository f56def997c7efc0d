"""Decides whether the native code of a bundle may run, from the bundle's digest alone.

This module makes the decision and keeps the record of what this user built here. It reads no bundle
and runs no code. The record is a convenience for honest bundles. It does not protect against
someone who can write to this user's home directory.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from .archive import digest as digests
from .archive.cache import private_directory, user_directory
from .errors import AotpackError, TrustError

ALL = "all"
_VARIABLE = "AOTPACK_STATE"


class TrustArgumentError(AotpackError, ValueError):
    """The ``trust`` argument has none of the accepted forms."""

    __str__ = AotpackError.__str__


class TrustDecision(Struct, frozen=True):
    """Whether native code may run, and why (or why not), as a phrase that follows "because"."""

    trusted: bool
    reason: str


def check_trust(bundle_digest: str, trust: str | Collection[str] | None) -> str:
    """Return why the bundle's native code may run.

    Args:
        bundle_digest: ``Bundle.digest``.
        trust: ``"all"``, a digest, a collection of digests, or None: only what this user built
            here.

    Raises:
        TrustError: it is not trusted; names the ways to trust it.
        TrustArgumentError: ``trust`` is something else.
    """
    decision = decide_trust(bundle_digest, trust)
    if not decision.trusted:
        raise TrustError(
            f"The native code of this bundle may not run: {decision.reason}.",
            hint="Either build the bundle as this user on this machine, or pin it: "
            f'trust="{bundle_digest}" (or a collection of digests), or accept any bundle: trust="{ALL}". '
            "The portable target runs without trust.",
        )
    return decision.reason


def decide_trust(bundle_digest: str, trust: str | Collection[str] | None) -> TrustDecision:
    """Return the decision for the bundle, without raising an error for an untrusted one.

    Pins are final. A caller who names digests gets no other bundle, even if it was built here.

    Raises:
        TrustArgumentError: ``trust`` has none of the accepted forms.
    """
    pins = _pins(trust)
    if pins is None:
        return TrustDecision(True, f'the caller passed trust="{ALL}"')
    if pins:
        if bundle_digest in pins:
            return TrustDecision(True, "the caller pinned its digest")
        return TrustDecision(False, f"its digest {bundle_digest} is not one the caller pinned")
    if _was_built_here(bundle_digest):
        return TrustDecision(True, "this user built it on this machine")
    return TrustDecision(False, "this user did not build it on this machine and the caller did not vouch for it")


def record_built(bundle_digest: str) -> None:
    """Record that this user built the bundle on this machine.

    Raises:
        AotpackError: the record cannot be written, or others may write to its directory.
    """
    path = _record(bundle_digest, make=True)
    try:
        # Written in place, because a reader treats an incomplete record as none.
        path.write_text(_identity(), encoding="ascii")
    except OSError as error:
        raise AotpackError(
            f"The record {path} cannot be written: {error.strerror}.", hint=f"Set {_VARIABLE} to another directory."
        ) from error


def _pins(trust: object) -> frozenset[str] | None:
    """Return the pinned digests; empty for None, and None for ``"all"``."""
    if trust is None:
        return frozenset()
    if isinstance(trust, str):
        if trust == ALL:
            return None
        trust = (trust,)
    if not isinstance(trust, Collection) or not trust:
        raise _refused(trust)
    for pin in trust:
        if not isinstance(pin, str) or not digests.is_digest(pin):
            raise _refused(pin)
    return frozenset(trust)


def _refused(value: object) -> TrustArgumentError:
    return TrustArgumentError(
        f"trust={value!r} is not understood.",
        hint='Pass None, "all", a digest "sha256:<64 hex digits>", or a collection of at least one digest.',
    )


def _was_built_here(bundle_digest: str) -> bool:
    try:
        return _record(bundle_digest, make=False).read_bytes() == _identity().encode()
    except OSError:
        return False


def _record(bundle_digest: str, *, make: bool) -> Path:
    """Return the path of the record. Checks its directory if it exists, and creates it if ``make``."""
    folder = user_directory(_VARIABLE, "XDG_STATE_HOME", ".local/state")
    for path in (folder, folder / "built"):
        if make or path.exists():
            private_directory(path, _VARIABLE)
    return folder / "built" / digests.hex_part(bundle_digest)


def _identity() -> str:
    """Identify this user on this machine. A home directory shared by machines then counts only for the one that built.

    It is hashed, because a machine's id must stay confidential (machine-id(5)). Without an id the
    host name is used.
    """
    try:
        machine = Path("/etc/machine-id").read_bytes().decode("ascii").strip()  # read_text() would import a codec
    except (OSError, UnicodeDecodeError):
        machine = ""
    text = f"aotpack {machine or platform.node()} {os.geteuid()}"
    return hashlib.sha256(text.encode()).hexdigest()

"""Decides whether the native code of a bundle may run, from the bundle's digest and its signatures.

This module makes the decision and keeps the record of what this user built here. It runs no code,
and reads of a bundle only signatures (:mod:`.signing`). The record is a convenience for honest
bundles. It does not protect against someone who can write to this user's home directory.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from .archive import digest as digests
from .archive.private import private_directory, require_writable, user_directory
from .errors import AotpackError, DirectoryError, Problem, TrustError
from .value import Value

if TYPE_CHECKING:
    from .archive.attachments import Attached

ALL = "all"
KEY = "key:"
"""Before the name or file of a key that must have signed the bundle."""
_VARIABLE = "AOTPACK_STATE"


class TrustArgumentError(AotpackError, ValueError):
    """The ``trust`` argument has none of the accepted forms."""

    __str__ = AotpackError.__str__


class TrustDecision(Value):
    """Whether native code may run, and why (or why not), as a phrase that follows "because"."""

    __slots__ = ("trusted", "reason", "problems")  # noqa: RUF023 - in the order of the arguments

    trusted: bool
    reason: str
    problems: tuple[Problem, ...]

    def __init__(self, trusted: bool, reason: str, problems: tuple[Problem, ...] = ()) -> None:
        self._set(trusted, reason, problems)


def check_trust(
    bundle_digest: str, trust: str | Collection[str] | None, bundle: Attached | None = None, vouched: str = ""
) -> str:
    """Return why the bundle's native code may run.

    Args:
        bundle_digest: ``Bundle.digest``.
        trust: ``"all"``, digests and keys (``"key:acme"``, ``"key:acme.pub"``), or None: what this
            user built here, and what a key signed that this user trusts.
        bundle: the bundle, whose signatures may decide. None: it is not signed.
        vouched: why a policy permits its native code; empty: none does.

    Raises:
        TrustError: it is not trusted; names the ways to trust it.
        TrustArgumentError: ``trust`` is something else.
    """
    decision = decide_trust(bundle_digest, trust, bundle, vouched)
    if not decision.trusted:
        raise TrustError(
            f"The native code of this bundle may not run: {decision.reason}.",
            decision.problems,
            hint="Either build the bundle as this user on this machine, or pin it: "
            f'trust="{bundle_digest}" (or a collection of digests), or trust a key that signed it: '
            f'`aotpack trust add KEY.pub` or trust="{KEY}KEY.pub", or accept any bundle: trust="{ALL}". '
            "The portable target runs without trust.",
        )
    return decision.reason


def decide_trust(
    bundle_digest: str, trust: str | Collection[str] | None, bundle: Attached | None = None, vouched: str = ""
) -> TrustDecision:
    """Return the decision for the bundle, without raising an error for an untrusted one.

    What the caller names is final. A caller who names digests or keys gets no other bundle, even if
    it was built here.

    Raises:
        TrustArgumentError: ``trust`` has none of the accepted forms.
        AotpackError: a trusted key cannot be read.
    """
    named = check_argument(trust)
    if named is None:
        return TrustDecision(True, f'the caller passed trust="{ALL}"')
    if named:
        if bundle_digest in named:
            return TrustDecision(True, "the caller pinned its digest")
        keys = sorted(name.removeprefix(KEY) for name in named if name.startswith(KEY))
        if keys:
            return _signed(bundle, keys)
        return TrustDecision(False, f"its digest {bundle_digest} is not one the caller pinned")
    if vouched:
        return TrustDecision(True, vouched)
    if _was_built_here(bundle_digest):
        return TrustDecision(True, "this user built it on this machine")
    if bundle is not None and bundle.has_attachments:
        signed = _signed(bundle, None)
        if signed.trusted:
            return signed
        reason = f"this user did not build it on this machine, the caller did not vouch for it, and {signed.reason}"
        return TrustDecision(False, reason, signed.problems)
    return TrustDecision(False, "this user did not build it on this machine and the caller did not vouch for it")


def why_untrusted(bundle_digest: str, trust: str | Collection[str] | None, bundle: Attached, vouched: str = "") -> str:
    """Return why the bundle is not trusted; empty: it is.

    A bundle whose trust cannot be decided here (no directory for records, no library for
    signatures) is not trusted. Its portable graphs run.
    """
    try:
        decision = decide_trust(bundle_digest, trust, bundle, vouched)
    except (DirectoryError, TrustError) as error:
        return error.summary
    return "" if decision.trusted else decision.reason


def _signed(bundle: Attached | None, names: Collection[str] | None) -> TrustDecision:
    """Whether one of the keys signed the bundle; of all keys that this user trusts if there are no ``names``."""
    if bundle is None or not bundle.has_attachments:
        return TrustDecision(False, "it is not signed")
    from .signing import key_store  # only for a signed bundle

    if names is None and not key_store.may_have_keys():
        return TrustDecision(False, "it is signed, but this user trusts no key")
    from .signing.verify import signer

    keys = key_store.trusted_keys() if names is None else [key_store.named_key(name) for name in names]
    verdict = signer(bundle, keys)
    return TrustDecision(verdict.key is not None, verdict.reason, tuple(verdict.problems))


def record_built(bundle_digest: str) -> None:
    """Record that this user built the bundle on this machine.

    Raises:
        AotpackError: the record cannot be written, or others may write to its directory.
    """
    path = _record(bundle_digest, make=True)
    try:
        # Written in place, because a reader treats an incomplete record as none.
        path.unlink(missing_ok=True)  # it may be another user's
        path.write_text(_identity(), encoding="ascii")
    except OSError as error:
        raise AotpackError(
            f"The record {path} cannot be written: {error.strerror}.", hint=f"Set {_VARIABLE} to another directory."
        ) from error


def check_records() -> None:
    """Check that builds can be recorded, before one begins.

    Raises:
        DirectoryError: the directory of records cannot be made or written to.
    """
    require_writable(_records(make=True), _VARIABLE)


def check_argument(trust: object) -> frozenset[str] | None:
    """Return the digests and keys that the argument ``trust`` names; none for None, and None for ``"all"``.

    Raises:
        TrustArgumentError: it has none of the accepted forms.
    """
    if trust is None:
        return frozenset()
    if isinstance(trust, str):
        if trust == ALL:
            return None
        trust = (trust,)
    if not isinstance(trust, Collection) or isinstance(trust, bytes) or not trust:
        raise _refused(trust)
    for name in trust:
        if not isinstance(name, str) or not (digests.is_digest(name) or (name.startswith(KEY) and name != KEY)):
            raise _refused(name)
    return frozenset(trust)


def _refused(value: object) -> TrustArgumentError:
    return TrustArgumentError(
        f"trust={value!r} is not understood.",
        hint='Pass None, "all", a digest "sha256:<64 hex digits>", a key "key:<name or file>", or a collection of these.',
    )


def _was_built_here(bundle_digest: str) -> bool:
    path = _record(bundle_digest, make=False)
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return False
        return path.read_bytes() == _identity().encode()
    except OSError:
        return False


def _record(bundle_digest: str, *, make: bool) -> Path:
    """Return the path of a bundle's record."""
    return _records(make=make) / digests.hex_part(bundle_digest)


def _records(*, make: bool) -> Path:
    """Return the directory of records. Checks it if it exists, and creates it if ``make``."""
    folder = user_directory(_VARIABLE, "XDG_STATE_HOME", ".local/state")
    for path in (folder, folder / "built"):
        if make or path.exists():
            private_directory(path, _VARIABLE)
    return folder / "built"


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

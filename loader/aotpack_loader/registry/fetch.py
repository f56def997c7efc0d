"""What ``load("oci://…")`` does before it opens a bundle: pull the target that this machine will run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..devices.select import wanted
from ..errors import RegistryError
from ..options import LoadOptions, pinned
from .lock import FILE_NAME, locked
from .reference import Reference, is_reference

if TYPE_CHECKING:
    from ..archive.bundle import Bundle

_VARIABLE = "AOTPACK_LOCK"


def fetch(text: str, options: LoadOptions) -> tuple[Path, LoadOptions]:
    """Bring the bundle that ``text`` refers to into the cache.

    Returns its directory, and the options with the digest that the caller named. A digest of a lock
    file decides which bundle it is, but does not permit its code.

    Raises:
        RegistryError: it cannot be pulled, or digests differ.
        BundleNotFoundError: a store has no such file.
        TargetError: it has no target that ``options`` ask for.
    """
    if not is_reference(text):
        from .files import fetch_file  # stores of files need no HTTP library of ours

        path, is_local = fetch_file(text)
        return path, pinned(options, options.digest)._replace(source="" if is_local else text)
    from .pull import pull

    reference = Reference.parse(text)
    options = options._replace(source=reference.repository_url)
    if options.digest is not None:
        if reference.digest not in ("", options.digest):
            raise RegistryError(f"digest={options.digest!r} is wanted, and {reference} names another.")
        reference = reference.at(options.digest)
    options = pinned(options, reference.digest or None)
    named = options.lock or os.environ.get(_VARIABLE)
    reference = locked(reference, named or FILE_NAME, required=options.lock is not None, is_named=bool(named))
    return pull(reference, lambda bundle: wanted(bundle, _permitted(bundle, options))).path, options


def _permitted(bundle: Bundle, options: LoadOptions) -> LoadOptions:
    """Ask the policies before layers are fetched. The load asks again, and warns."""
    if not (options.policy or os.environ.get("AOTPACK_POLICY")):
        return options
    from ..policy import apply_policies  # rarely needed

    return apply_policies(bundle, options, warn=False)

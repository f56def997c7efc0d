"""What ``load("oci://…")`` does before it opens a bundle: pull the target that this machine will run."""

from __future__ import annotations

from pathlib import Path

from ..devices.select import wanted
from ..options import LoadOptions
from .pull import pull
from .reference import Reference


def fetch(text: str, options: LoadOptions) -> Path:
    """Bring the bundle that ``text`` refers to into the cache and return its directory.

    Raises:
        RegistryError: it cannot be pulled.
        TargetError: it has no target that ``options`` ask for.
    """
    reference = Reference.parse(text)
    return pull(reference, lambda bundle: wanted(bundle, options)).path

"""What a commit leaves to others: a share of some tests runs at each commit, another share at the next, everything nightly."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess

from devtools.paths import ROOT


def nightly() -> bool:
    """Whether this is a run of everything."""
    return "AOTPACK_NIGHTLY" in os.environ


def is_due(name: str, parts: int) -> bool:
    """Whether it is the turn of a test: one in ``parts``, others at each commit."""
    return nightly() or hashlib.sha256(f"{_commit()} {name}".encode()).digest()[0] % parts == 0


@functools.cache
def _commit() -> str:
    asked = ["git", "-C", os.fspath(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()

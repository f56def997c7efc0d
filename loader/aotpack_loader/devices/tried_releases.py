"""Other minor releases of torch on which code of one was tried. Needs no torch."""

from __future__ import annotations

from typing import Final

from ..format import schema

TRIED: Final[dict[str, tuple[str, ...]]] = {
    "2.13": ("2.14", "2.15"),
    "2.14": ("2.13", "2.15"),
    "2.15": ("2.13", "2.14"),
}
"""Minor release that code was compiled for, to the other minor releases it was run on.

``scripts/test-torch-matrix`` found the same bits there in every case that it built. A test compares
this table with its results.
"""


def tried_releases(target: schema.Target) -> tuple[str, ...]:
    """Minor releases that run the target's code, besides the one it was compiled for.

    Code that does not list what it calls runs on its own release alone. So does code for GPUs, which was tried nowhere.
    """
    if not target.imports or target.device != "cpu":
        return ()
    return TRIED.get(minor(target.torch.removeprefix("==")), ())


def minor(version: str) -> str:
    """Convert ``"2.13.0+cpu"`` to ``"2.13"``."""
    return ".".join(version.split(".")[:2])

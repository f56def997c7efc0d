"""Targets compile the forward and backward graphs of a program to code blobs.

A target is found by name through the entry point group ``aotpack.targets``, so other packages can
add targets. Text after a colon (``cpu:x86-64-v3``) names a variant of the target.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from aotpack_loader.errors import BuildError

from .base import GraphToCompile, Target, by_graphs, by_kind, graphs_to_compile

__all__ = [
    "GraphToCompile",
    "Target",
    "by_graphs",
    "by_kind",
    "find_targets",
    "graphs_to_compile",
]

GROUP = "aotpack.targets"


def find_targets(name: str) -> list[Target]:
    """Create the target called ``name``; several, if the name alone stands for several variants.

    Raises:
        BuildError: it or its variant does not exist.
    """
    kind, _, variant = name.partition(":")
    points = list(entry_points(group=GROUP, name=kind))
    if not points:
        known = ", ".join(sorted({point.name for point in entry_points(group=GROUP)}))
        raise BuildError(f"There is no target {name!r}.", hint=f"Known targets: {known}.")
    target: type[Target] = points[0].load()
    return [target(each) for each in ([variant] if variant else target.variants())]

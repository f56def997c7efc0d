"""Targets compile the forward and backward graphs of a program to code blobs.

A target is found by name through the entry point group ``aotpack.targets``, so other packages can
add targets. Text after a colon (``cpu:x86-64-v3``) names a variant of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points

from aotpack_loader.errors import BuildError

from .base import GraphToCompile, Target, compile_group, graphs_to_compile, in_groups

__all__ = [
    "GraphToCompile",
    "Target",
    "compile_group",
    "graphs_to_compile",
    "in_groups",
    "resolve_targets",
    "uses_inductor",
]

GROUP = "aotpack.targets"


def resolve_targets(names: Sequence[str]) -> list[Target]:
    """Create the targets called ``names``, each once, in order.

    Raises:
        BuildError: a target or its variant does not exist.
    """
    found: dict[str, Target] = {}
    for name in names:
        kind, _, variant = name.partition(":")
        points = list(entry_points(group=GROUP, name=kind))
        if not points:
            known = ", ".join(sorted({point.name for point in entry_points(group=GROUP)}))
            raise BuildError(f"There is no target {name!r}.", hint=f"Known targets: {known}.")
        target: Target = points[0].load()(variant)
        found.setdefault(target.name, target)
    if not found:
        raise BuildError("No target was asked for.", hint="Give at least one, for example 'cpu' or 'portable'.")
    return list(found.values())


def uses_inductor(target: Target) -> bool:
    """Whether a target compiles with Inductor."""
    return bool(getattr(target, "uses_inductor", False))

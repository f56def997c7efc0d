"""The portable target: the graphs themselves. Nothing to compile; checks that the loader's interpreter takes them."""

from __future__ import annotations

from collections.abc import Sequence

from aotpack_loader.errors import BuildError, Problem, UnsupportedError
from aotpack_loader.format import schema

from ..bundle import BlobStore, TargetEntry
from ..cache import CompileCache
from .base import GraphToCompile


class PortableTarget:
    """Runs wherever torch runs, without native code."""

    def __init__(self, variant: str = "") -> None:
        if variant:
            raise BuildError(f"The portable target has no variants; {variant!r} was asked for.")

    @property
    def name(self) -> str:
        return "portable"

    @property
    def decompositions(self) -> None:
        """None: eager's own operators are the fastest to interpret, and draw eager's random numbers."""

    def compile(self, graphs: Sequence[GraphToCompile], store: BlobStore, cache: CompileCache) -> TargetEntry:
        problems = [
            Problem(item.key, f"calls {node.op}")
            for item in graphs
            for node in item.graph.nodes
            if node.op.startswith("higher_order.")
        ]
        if problems:
            raise UnsupportedError("The portable target cannot run higher-order operators.", problems)
        return TargetEntry(schema.Target(name=self.name, kind="portable", device="any"), None, [])

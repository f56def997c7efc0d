"""The portable target stores the graphs alone, without code, and checks that the loader's
interpreter supports them.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotpack_loader.devices import operators
from aotpack_loader.errors import BuildError, BundleError, Problem, UnsupportedError
from aotpack_loader.format import schema, subgraphs

from ..graph import source_line
from ..writer.bundle import BlobStore, TargetEntry
from ..writer.cache import CompileCache
from .base import GraphToCompile, Target


class PortableTarget(Target):
    """Runs wherever torch runs, without native code."""

    def __init__(self, variant: str = "") -> None:
        if variant:
            raise BuildError(f"The portable target has no variants; {variant!r} was asked for.")

    @property
    def name(self) -> str:
        return "portable"

    def compile(
        self, graphs: Sequence[GraphToCompile], state: Sequence[schema.StateEntry], store: BlobStore, cache: CompileCache
    ) -> TargetEntry:
        names = {node.op: item for item in reversed(graphs) for node in subgraphs.all_nodes(item.graph)}
        problems = [Problem(_where(name, item), message) for name, item in names.items() if (message := _refusal(name))]
        if problems:
            raise UnsupportedError("The portable target cannot run operators that this model uses.", problems)
        return TargetEntry(schema.Target(name=self.name, kind="portable", device="any"), None, [])


_KERNELS_OF_PROCESSORS = ("aten.mkldnn_rnn_layer_backward.default",)


def _where(name: str, item: GraphToCompile) -> str:
    """The source line of the model that calls the operator called ``name``, or else the graph's
    key.
    """
    lines = [source_line(node) for node in item.module.graph.nodes if str(node.target) == name]
    return next(filter(None, lines), item.key)


def _refusal(name: str) -> str:
    """Why a loader would not run the operator called ``name``; empty if it would."""
    if name in _KERNELS_OF_PROCESSORS:
        return "it keeps values in a form of the processor's own; build with --target portable beside the other targets"
    space = name.partition(".")[0]
    try:
        operators.implementation(name, declared=(space,))
    except BundleError as error:
        return error.summary
    return ""

"""The protocol of a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from aotpack_loader.format import schema

from .._torch import Decompositions
from ..writer.bundle import BlobStore, TargetEntry
from ..writer.cache import CompileCache


@dataclass(frozen=True)
class GraphToCompile:
    """One graph of the program: ``key`` is ``train.forward``; ``module`` its fx form, whose nodes carry ``meta["val"]``.

    ``training``: one of a forward and backward pair. ``private`` are the outputs of a forward graph that only its backward
    reads, so that a target may lay them out as it likes; ``saved`` maps inputs of a backward graph to outputs of its forward.
    ``method`` is the one it is part of, null for a part of a graph.
    ``specializations`` are the sizes that targets for fixed sizes compile it for, each a value for every symbol of the method.
    """

    key: str
    graph: schema.Graph
    descriptor: schema.Descriptor
    module: torch.fx.GraphModule
    training: bool = False
    private: frozenset[int] = frozenset()
    saved: Mapping[int, int] = field(default_factory=dict)
    method: schema.Method | None = None
    specializations: Sequence[Mapping[str, int]] = ()


def graphs_to_compile(
    methods: Mapping[str, schema.Method],
    graphs: Mapping[str, tuple[schema.Graph, torch.fx.GraphModule]],
) -> list[GraphToCompile]:
    """The graphs of a program, given by their keys in both forms, as targets take them: a forward before its backward.

    Methods are in the order of their names, as a document has them: so is what targets make of them, whoever has the methods.
    """
    found = []
    for name, method in sorted(methods.items()):
        backward = method.backward
        saved = [] if backward is None else backward.saved
        outputs = {i: item.output for i, item in enumerate(saved) if isinstance(item, schema.SavedOutput)}
        seen = {item.output for item in (*method.mutations, *method.results) if hasattr(item, "output")}
        private = frozenset(outputs.values()) - seen
        made = partial(GraphToCompile, training=backward is not None, method=method)
        forward = graphs[f"{name}.forward"]
        found.append(made(f"{name}.forward", forward[0], method.forward, forward[1], private=private))
        if backward is not None:
            key = f"{name}.backward"
            found.append(made(key, graphs[key][0], backward.graph, graphs[key][1], saved=outputs))
    return found


class Target(Protocol):
    """Compiles the graphs of a program for one kind of machine.

    One whose code is for fixed sizes has ``specializes = True``, and compiles each graph for its ``specializations``. One whose
    compiler keeps loops has ``keeps_loops = True``: recurrent layers are then traced as scans, not step by step.
    One that Inductor compiles has ``uses_inductor = True``: the fixes of Inductor must then fit this torch.
    """

    @property
    def name(self) -> str:
        """Name in the bundle, variant included: ``cpu:x86-64-v3``."""

    def decompositions(self, *, exact_random: bool) -> Decompositions | None:
        """Decompositions to trace with, so that the partitioner saves what this target's compiler would.

        ``exact_random``: none that draws other random numbers than eager.
        """

    def compile(
        self, graphs: Sequence[GraphToCompile], state: Sequence[schema.StateEntry], store: BlobStore, cache: CompileCache
    ) -> TargetEntry:
        """Compile ``graphs`` and put the code into ``store``; ``state`` are the program's parameters and buffers.

        Raises:
            BuildError: a graph this target cannot run; names the operator. Or state that it cannot hold.
        """

"""The interface that every compilation target implements, and the graphs that it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from aotpack_loader.format import schema

from .._torch.aot_autograd import Decompositions
from ..writer.bundle import BlobStore, TargetEntry
from ..writer.cache import CompileCache


@dataclass(frozen=True)
class GraphToCompile:
    """One graph of a program: ``key`` is, for example, ``train.forward``; nodes of ``module`` have
    ``meta["val"]``.

    ``training``: the graph is one of a forward and backward pair. ``private`` are the outputs of a
    forward graph that only its backward reads; a target may choose their layout. ``saved`` maps
    inputs of a backward graph to outputs of its forward. ``method`` is the method it belongs to,
    null for a part of a graph. ``specializations`` are the size combinations that fixed-size
    targets compile it for; each maps every symbol of the method to a value. ``runs``: how often a
    step runs it, which is several times for a repeated layer.
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
    runs: int = 1


def graphs_to_compile(
    methods: Mapping[str, schema.Method],
    graphs: Mapping[str, tuple[schema.Graph, torch.fx.GraphModule]],
) -> list[GraphToCompile]:
    """The graphs of a program for targets to compile, each forward before its backward.

    ``graphs`` has both forms by key.

    Methods are sorted by name, as in a stored document. Targets' results therefore do not depend on
    the caller.
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

    ``specializes = True``: the code is for fixed sizes, and each graph is compiled for its
    ``specializations``. ``keeps_loops = True``: the compiler keeps loops, so recurrent layers are
    traced as scans, not step by step. ``uses_inductor = True``: Inductor compiles, so the fixes of
    Inductor must fit the installed torch. ``has_lstm_kernel = True``: graphs may call oneDNN's kernel
    for a layer of an LSTM and its gradient; they do if all targets of a build have it.
    ``tune()``: measures alternatives on this machine, for the code that :meth:`compile` makes, and
    returns what it chose.
    ``compile_together(targets, …)``: compiles several variants of this target at once, with the
    arguments of :meth:`compile` after them.
    """

    @property
    def name(self) -> str:
        """Name in the bundle, variant included: ``cpu:x86-64-v3``."""

    def decompositions(self, *, exact_random: bool) -> Decompositions | None:
        """Decompositions to trace with, so that the partitioner saves what this target's compiler
        would.

        ``exact_random``: leave out decompositions that draw other random numbers than eager.
        """

    def compile(
        self, graphs: Sequence[GraphToCompile], state: Sequence[schema.StateEntry], store: BlobStore, cache: CompileCache
    ) -> TargetEntry:
        """Compile ``graphs`` and add the code to ``store``; ``state`` are the program's parameters
        and buffers.

        Raises:
            BuildError: this target cannot run a graph (the message names the operator), or cannot
                hold the state.
        """


def in_groups(targets: Sequence[Target]) -> list[list[Target]]:
    """The targets, with the variants that compile together in one group."""
    groups: dict[object, list[Target]] = {}
    for target in targets:
        groups.setdefault(type(target) if hasattr(target, "compile_together") else target.name, []).append(target)
    return list(groups.values())


def compile_group(
    group: Sequence[Target],
    graphs: Sequence[GraphToCompile],
    state: Sequence[schema.StateEntry],
    store: BlobStore,
    cache: CompileCache,
) -> list[TargetEntry]:
    """Compile the graphs for every target of a group."""
    together = getattr(group[0], "compile_together", None)
    if together is None:
        return [target.compile(graphs, state, store, cache) for target in group]
    found: list[TargetEntry] = together(group, graphs, state, store, cache)
    return found

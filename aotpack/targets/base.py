"""The interface that every compilation target implements, and the graphs that it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import msgspec
import torch

from aotpack_loader.errors import AotpackError
from aotpack_loader.format import schema

from .._torch.tracing.aot_autograd import Decompositions
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
    step runs it, which is several times for a repeated layer. ``sizes`` is what code may assume of
    the sizes: the symbols of the method with their ranges, and its constraints, as JSON.
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
    sizes: str = ""


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
        sizes = msgspec.json.encode([method.symbols, method.constraints]).decode()
        made = partial(GraphToCompile, training=backward is not None, method=method, sizes=sizes)
        forward = graphs[f"{name}.forward"]
        found.append(made(f"{name}.forward", forward[0], method.forward, forward[1], private=private))
        if backward is not None:
            key = f"{name}.backward"
            found.append(made(key, graphs[key][0], backward.graph, graphs[key][1], saved=outputs))
    return found


@dataclass(frozen=True)
class Capabilities:
    """What the compiler of a target can do, and what it needs of a build.

    ``specializes``: the code is for fixed sizes, and each graph is compiled for its ``specializations``.
    ``keeps_loops``: the compiler keeps loops, so recurrent layers are traced as scans, not step by step.
    ``uses_inductor``: Inductor compiles, so the fixes of Inductor must fit the installed torch.
    ``has_lstm_kernel``: graphs may call oneDNN's kernel for a layer of an LSTM and its gradient.
    ``tunes``: :meth:`Target.tune` measures alternatives.
    ``orders_ties``: of equal elements, ``topk`` and ``kthvalue`` return those that eager returns.
    """

    specializes: bool = False
    keeps_loops: bool = False
    uses_inductor: bool = False
    has_lstm_kernel: bool = False
    tunes: bool = False
    orders_ties: bool = True


class Target(ABC):
    """Compiles the graphs of a program for one kind of machine."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, variant: str = "") -> None:  # noqa: B027 - most have variants, and check them
        """Create the variant called ``variant``."""

    @classmethod
    def variants(cls) -> Sequence[str]:
        """The variants that the target's name alone stands for."""
        return ("",)

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in the bundle, variant included: ``cpu:x86-64-v3``."""

    def decompositions(self, *, exact_random: bool) -> Decompositions | None:
        """Decompositions to trace with, so that the partitioner saves what this target's compiler
        would. Null: eager's own operators.

        ``exact_random``: leave out decompositions that draw other random numbers than eager.
        """
        return None

    def lacks(self) -> list[AotpackError]:
        """Errors for what the target lacks on this machine, before a build begins."""
        return []

    def tune(self) -> str:
        """Measure alternatives on this machine for the code that is compiled next. Return what was chosen."""
        raise NotImplementedError

    @abstractmethod
    def compile(
        self, graphs: Sequence[GraphToCompile], state: Sequence[schema.StateEntry], store: BlobStore, cache: CompileCache
    ) -> TargetEntry:
        """Compile ``graphs`` and add the code to ``store``; ``state`` are the program's parameters
        and buffers.

        Raises:
            BuildError: this target cannot run a graph (the message names the operator), or cannot
                hold the state.
        """

    @staticmethod
    def compile_variants(
        targets: Sequence[Any],
        graphs: Sequence[GraphToCompile],
        state: Sequence[schema.StateEntry],
        store: BlobStore,
        cache: CompileCache,
    ) -> list[TargetEntry]:
        """Compile for several variants of this target, with the arguments of :meth:`compile`."""
        return [target.compile(graphs, state, store, cache) for target in targets]


def by_graphs(targets: Sequence[Target]) -> list[list[Target]]:
    """The targets, with those that are compiled from the same graphs in one list.

    Graphs are traced for each kind of target that has decompositions. All others take eager's operators.
    """
    return _grouped(targets, lambda target: type(target).decompositions)


def by_kind(targets: Sequence[Target]) -> list[list[Target]]:
    """The targets, with the variants of one kind in one list."""
    return _grouped(targets, type)


def _grouped(targets: Sequence[Target], key: Callable[[Target], object]) -> list[list[Target]]:
    groups: dict[object, list[Target]] = {}
    for target in targets:
        groups.setdefault(key(target), []).append(target)
    return list(groups.values())

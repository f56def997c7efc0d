"""What targets of AOTInductor's code have in common."""

from __future__ import annotations

import contextlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from aotpack_loader.archive.cache import check_cache
from aotpack_loader.errors import AotpackError, BuildError, Problem
from aotpack_loader.format import media_types, schema

from ..._torch.inductor.toolchain import commands
from ...graph import source_line
from ...graph.expressions import render
from ...writer.bundle import BlobStore, TargetEntry
from ...writer.cache import CompileCache
from ..base import GraphToCompile, Target
from .conversion import ConvertedGraph
from .parts import method_of

Files = dict[str, bytes]
"""The code of a graph as the cache keeps it, by kind of file."""


@dataclass
class Made:
    """What is compiled for one variant: parts of its target's document."""

    executables: dict[str, schema.Executable] = field(default_factory=dict)
    layers: list[schema.Descriptor] = field(default_factory=list)
    constraints: dict[str, set[str]] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)

    def add(
        self,
        item: GraphToCompile,
        call: ConvertedGraph,
        files: Files,
        store: BlobStore,
        kernels: Mapping[str, schema.CudaKernel] = MappingProxyType({}),
    ) -> None:
        """Add the code of a graph. ``kernels``: what this code launches, by name."""
        facts = json.loads(files["facts"])
        self.imports.update(facts["imports"])
        if found := facts["constraints"]:
            self.constraints.setdefault(method_of(item.key), set()).update(found)
        code = self.layer(store, files["code"], media_types.CODE_AOTI)
        fallbacks = None
        if "fallbacks" in files:
            fallbacks = store.add_bytes(files["fallbacks"], media_types.CODE_FALLBACKS)
            self.layers.append(fallbacks)
        self.executables[item.key] = schema.Executable(
            code, call.inputs, call.outputs, fallbacks, call.numbers, call.overwritten, dict(kernels)
        )

    def layer(self, store: BlobStore, data: bytes, media_type: str) -> schema.Descriptor:
        """Store code, compressed."""
        self.layers.append(store.add_compressed(data, media_type))
        return self.layers[-1]


class NativeTarget(Target):
    """A target whose graphs AOTInductor compiles, each once for several variants."""

    checks: ClassVar[Sequence[Callable[[], object]]] = (commands.check_compiler, check_cache)
    """What a machine must have; each raises what it lacks."""

    def lacks(self) -> list[AotpackError]:
        """What this machine lacks of :attr:`checks`."""
        found: list[AotpackError] = []
        for check in self.checks:
            try:
                check()
            except AotpackError as error:
                found.append(error)
        return found

    def compile(
        self, graphs: Sequence[GraphToCompile], state: Sequence[schema.StateEntry], store: BlobStore, cache: CompileCache
    ) -> TargetEntry:
        return self.compile_variants([self], graphs, state, store, cache)[0]

    @staticmethod
    @abstractmethod
    def compile_variants(
        targets: Sequence[Any],
        graphs: Sequence[GraphToCompile],
        state: Sequence[schema.StateEntry],
        store: BlobStore,
        cache: CompileCache,
    ) -> list[TargetEntry]: ...


def files_of(library: commands.Library, **facts: object) -> Files:
    """What the cache keeps of a finished library: its code, ``facts``, and what its fallbacks call."""
    found = {
        **facts,
        "constraints": sorted({render(guard) for guard in library.guards if guard not in (True, False)}),
        "imports": commands.imports_from_torch(library.output),
    }
    files = {"code": library.output.read_bytes(), "facts": json.dumps(found).encode()}
    for fallbacks in library.output.parent.glob("*.wrapper.json"):
        files["fallbacks"] = fallbacks.read_bytes()
    return files


@contextlib.contextmanager
def refusing(key: str, target: str, hint: str) -> Iterator[None]:
    """Name the graph, the operators and the model's line where a compiler fails.

    Raises:
        BuildError: it failed.
    """
    try:
        yield
    except BuildError:
        raise
    except Exception as error:
        nodes = error.nodes if isinstance(error, commands.LoweringError) else []
        line = next(filter(None, map(source_line, nodes)), "")
        names = ", ".join(dict.fromkeys(str(node.target) for node in nodes if node.op == "call_function"))
        reason = " ".join(str(error).split("\n", 1)[0].split()) or type(error).__name__
        problem = Problem(line or key, f"{names}: {reason}" if names else reason)
        raise BuildError(f"AOTInductor could not compile {key} for {target}.", [problem], hint=hint) from error

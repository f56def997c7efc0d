"""The CPU target compiles forward and backward graphs with AOTInductor for a named instruction set."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.fx import GraphModule

from aotpack_loader.archive.temporaries import temporary_directory
from aotpack_loader.devices import cpuinfo, operators
from aotpack_loader.errors import BuildError, Problem
from aotpack_loader.format import schema

from ..._torch.api import messages
from ..._torch.api.process_copy import copies_are_made
from ..._torch.fixes import applying
from ..._torch.inductor import lowering
from ..._torch.inductor.decompositions import inductor_decompositions
from ..._torch.inductor.layouts import OutputLayout, has_convolutions, likely_layouts
from ..._torch.inductor.toolchain import commands, matmul_backend
from ..._torch.tracing import aot_autograd
from ...graph import source_line
from ...writer.bundle import BlobStore, TargetEntry
from ...writer.cache import CompileCache, revision_of
from ..aoti.conversion import ConvertedGraph, convert_graph
from ..aoti.native import Files, Made, NativeTarget, files_of, refusing
from ..aoti.parts import in_parts
from ..aoti.workers import Workers
from ..base import Capabilities, GraphToCompile
from .call_library import add_call_library, library_bytes

_FACTS = "layouts, own, constraints, imports"
"""Names of the facts that are stored with compiled code; part of the cache's key."""
_SOURCES = (Path(lowering.__file__).parent.parent, Path(__file__).parent.parent)
"""Sources that decide which code a graph gets. Their hash and the applied fixes of torch are part of the cache's key."""


class CpuTarget(NativeTarget):
    """AOTInductor code for one x86-64 level (``cpu:x86-64-v3``); without a variant, the build machine's level."""

    capabilities = Capabilities(uses_inductor=True, has_lstm_kernel=True, tunes=True)

    def __init__(self, variant: str = "") -> None:
        self.products: int | None = None
        if cpuinfo.architecture() != "amd64":
            if variant and variant != "native":
                raise BuildError(f"cpu:{variant} cannot be built on {cpuinfo.architecture()}; use cpu.")
            self.level, self.march = "native", None
            self.needed = tuple(sorted(cpuinfo.features()))
            return
        if not lowering.can_name_instruction_set():
            raise BuildError(
                f"torch {torch.__version__} cannot compile for a named instruction set.",
                hint='Build with a newer torch, or with targets=("portable",).',
            )
        level = variant or cpuinfo.best_x86_level()
        if level not in cpuinfo.X86_LEVELS:
            known = ", ".join(f"cpu:{name}" for name in cpuinfo.X86_LEVELS)
            raise BuildError(f"There is no target 'cpu:{variant}'.", hint=f"Known: cpu, {known}.")
        self.level, self.march = level, level
        self.needed = cpuinfo.X86_LEVELS[level]

    @property
    def name(self) -> str:
        return f"cpu:{self.level}"

    def decompositions(self, *, exact_random: bool) -> aot_autograd.Decompositions:
        """Inductor's own decompositions: the partition is then the same as ``torch.compile``'s."""
        return inductor_decompositions(exact_random=exact_random)

    def tune(self) -> str:
        """Measure which library multiplies matrices, for the code that is compiled next; returns what was chosen."""
        self.products = matmul_backend.products_by_onednn()
        return self._tuned["products"]

    @staticmethod
    def compile_variants(
        targets: Sequence[CpuTarget],
        graphs: Sequence[GraphToCompile],
        state: Sequence[schema.StateEntry],
        store: BlobStore,
        cache: CompileCache,
    ) -> list[TargetEntry]:
        """Compile for several instruction sets. Each graph is lowered once for all of them."""
        _refuse_unknown(graphs)
        _refuse_strings(graphs)
        graphs, sequences = in_parts(graphs)
        used = commands.inductor_fingerprint()
        made = [Made() for _ in targets]
        with temporary_directory(Path(tempfile.gettempdir())) as folder, Workers() as workers:
            library = workers.compilers.submit(library_bytes)
            jobs = [*_Jobs(targets, cache, used, folder, workers).start(graphs)]
            for item, call, finish in jobs:
                for found, files in zip(made, (waiting() for waiting in finish), strict=True):
                    found.add(item, call, files, store)
            compiled = library.result()
        calls = None if compiled is None else add_call_library(compiled, store)
        return [target._entry(found, sequences, used | target._tuned, calls) for target, found in zip(targets, made, strict=True)]

    def _entry(
        self, made: Made, sequences: dict[str, schema.Sequence], used: dict[str, str], calls: schema.CallLibrary | None
    ) -> TargetEntry:
        release = ".".join(torch.__version__.split(".")[:2])
        target = schema.Target(
            name=self.name,
            kind="aoti",
            device="cpu",
            executables=made.executables,
            sequences=sequences,
            constraints={name: sorted(found) for name, found in sorted(made.constraints.items())},
            architecture=cpuinfo.architecture(),
            instruction_set=self.level,
            cpu_features=list(self.needed),
            torch=f"=={release}.*",
            toolchain=used,
            call=calls,
            imports=sorted(made.imports),
        )
        variant = self.level.removeprefix("x86-64-") if self.march else ""
        layers = made.layers if calls is None else [*made.layers, calls.code]
        return TargetEntry(target, schema.Platform(cpuinfo.architecture(), "linux", variant), layers)

    @property
    def _options(self) -> dict[str, str]:
        return {"march": str(self.march), "bits": str(self._bits()), **self._tuned}

    @property
    def _tuned(self) -> dict[str, str]:
        """What ``tune`` has chosen, for the record of the tool chain."""
        if self.products is None:
            return {}
        return {"products": f"oneDNN's from {self.products} multiplications on" if self.products else "torch's library's"}

    def _bits(self) -> int | None:
        return None if self.march is None else lowering.x86_vector_bits(self.level)

    def _finish(self, key: str, library: commands.Library, keep: Callable[[Files], None]) -> Files:
        with self._refusing(key):
            library.finish()
        files = files_of(library, layouts=[item.order for item in library.layouts], own=[item.own for item in library.layouts])
        keep(files)
        return files

    def _refusing(self, key: str) -> contextlib.AbstractContextManager[None]:
        hint = 'Build with targets=("portable",) to get a bundle that runs without native code.'
        return refusing(key, self.name, hint)


class _Jobs:
    """Lowers graphs one after another while earlier ones compile."""

    def __init__(
        self, targets: Sequence[CpuTarget], cache: CompileCache, used: Mapping[str, str], folder: Path, workers: Workers
    ) -> None:
        self._targets, self._cache, self._used, self._folder, self._workers = targets, cache, used, folder, workers
        self._made_by = {
            "facts": _FACTS,
            "revision": revision_of(*_SOURCES),
            **applying.record_of_fixes(inductor=True, untested=False),
        }

    def start(self, graphs: Sequence[GraphToCompile]) -> Iterator[_Job]:
        """Start a job for each graph. A forward graph comes before its backward."""
        written: Sequence[OutputLayout] = ()
        ahead: _Ahead | None = None
        for item, following in zip_longest(graphs, graphs[1:]):
            call = _converted(item, written)
            found = self._find(item, call)
            lacking = [target for target, files in zip(self._targets, found, strict=True) if files is None]
            library = None if ahead is None else ahead.library_for(call, needed=bool(lacking))
            ahead = None
            if library is not None:
                libraries, written = [library], ()
            elif lacking:
                ahead = self._lower_ahead(item, following)
                try:
                    libraries = _lower(lacking, call.to_lower, self._folder)
                except BaseException:
                    if ahead is not None:
                        ahead.library.abandon()
                    raise
                written = libraries[0].layouts
            else:
                libraries = []
                facts = json.loads(next(files for files in found if files is not None)["facts"])
                written = [OutputLayout(*pair) for pair in zip(facts["layouts"], facts["own"], strict=True)]
            written = [written[position] for position in call.outputs] if written else ()
            yield item, call, self._compile(item, call, libraries, found)

    def _options(self, call: ConvertedGraph) -> list[dict[str, str]]:
        """What the code of a graph depends on besides the graph, for each target."""
        return [{**self._used, **target._options, "call": call.fingerprint, **self._made_by} for target in self._targets]

    def _find(self, item: GraphToCompile, call: ConvertedGraph) -> list[Files | None]:
        return [self._cache.find(item.graph, options) for options in self._options(call)]

    def _compile(
        self, item: GraphToCompile, call: ConvertedGraph, libraries: Sequence[commands.Library], found: Sequence[Files | None]
    ) -> list[Callable[[], Files]]:
        """Start the compilers. The returned functions wait for the code, one for each target."""
        started, finish = iter(libraries), list[Callable[[], Files]]()
        for target, options, files in zip(self._targets, self._options(call), found, strict=True):
            if files is None:
                library = next(started)
                library.start(self._workers.compilers, self._workers.chains, objects=self._cache, shared=CompileCache())
                finish.append(partial(target._finish, item.key, library, partial(self._cache.keep, item.graph, options)))
            else:
                finish.append(partial(dict, files))
        return finish

    def _lower_ahead(self, forward: GraphToCompile, backward: GraphToCompile | None) -> _Ahead | None:
        """Lower the backward in a copy of this process, while this one lowers its forward.

        This needs the layouts of saved values, which the forward's lowering decides. So the backward
        is lowered for the likely ones. Convolutions choose layouts of their own.
        """
        if backward is None or not backward.saved or len(self._targets) > 1 or not copies_are_made():
            return None
        if has_convolutions(forward.module.graph):
            return None
        call = _converted(backward, likely_layouts(forward.module.graph))
        if None not in self._find(backward, call):
            return None
        folder = self._folder / "ahead"
        return _Ahead(call, lowering.lower_in_copy(lambda: _lower(self._targets, call.to_lower, folder)[0]))


_Job: TypeAlias = tuple[GraphToCompile, ConvertedGraph, list[Callable[[], Files]]]
"""A graph in both forms, and functions that wait for its code, one for each target."""


class _Ahead(NamedTuple):
    """A backward graph that is lowered while its forward is."""

    call: ConvertedGraph
    library: commands.Library

    def library_for(self, call: ConvertedGraph, *, needed: bool) -> commands.Library | None:
        """The library, if it is needed and was lowered for the right layouts; otherwise the lowering is abandoned."""
        if needed and self.call.fingerprint == call.fingerprint:
            return self.library
        self.library.abandon()
        return None


def _converted(item: GraphToCompile, written: Sequence[OutputLayout]) -> ConvertedGraph:
    """The graph as AOTInductor accepts it; ``written`` are the layouts of the outputs of the graph before it, if known.

    The outputs of a part are not the outputs of its graph.
    """
    saved = {i: written[output] for i, output in item.saved.items() if output < len(written)}
    layouts = {i: layout.order for i, layout in saved.items() if layout.order}
    return convert_graph(item, layouts, {i for i, layout in saved.items() if layout.own})


def _lower(targets: Sequence[CpuTarget], graph: lowering.GraphToLower, folder: Path) -> list[commands.Library]:
    """Lower a graph; returns a library for each target."""
    codes = [
        lowering.Code(folder / target.level / graph.key / "code.so", target.march, target._bits(), target.products or 0)
        for target in targets
    ]
    with messages.own_warnings(), messages.quiet_torch_logs(), targets[0]._refusing(graph.key):
        return lowering.lower_with_aoti(graph, codes)


_ASSERTIONS = (torch.ops.aten._assert_scalar.default, torch.ops.aten._assert_async.msg)
"""Their messages are escaped."""
_CONTROL_FLOW = ("cond", "while_loop", "scan", "map_impl", "invoke_subgraph", "flex_attention")
_NEEDS_GRADIENTS = {"while_loop_stack_output": "a while_loop that needs gradients"}
"""Operators that only gradients bring into a graph, in the words of the model."""

_IN_CPP = operators.MATH_NAMESPACES | operators.TORCH_NAMESPACES
"""Namespaces of operators that C++ calls directly. Others get their strings as JSON."""


def _refuse_strings(graphs: Sequence[GraphToCompile]) -> None:
    """Reject strings that do not stay one literal: Inductor writes them into C++ without escaping them."""
    problems = [
        Problem(source_line(node) or item.key, f"{node.target} is given {argument!r}")
        for item, node in _nodes(graphs)
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in _IN_CPP and node.target not in _ASSERTIONS
        for argument in _strings([node.args, node.kwargs])
        if not argument.isprintable() or set(argument) & {'"', "\\"}
    ]
    if problems:
        raise BuildError("The cpu target cannot compile a string with quotes, backslashes or control characters.", problems[:10])


def _nodes(graphs: Sequence[GraphToCompile]) -> Iterator[tuple[GraphToCompile, torch.fx.Node]]:
    modules = ((item, module) for item in graphs for module in item.module.modules() if isinstance(module, GraphModule))
    return ((item, node) for item, module in modules for node in module.graph.nodes)


def _strings(arguments: Any) -> Iterator[str]:
    if isinstance(arguments, str):
        yield arguments
    elif isinstance(arguments, (list, tuple, dict)):
        for argument in arguments.values() if isinstance(arguments, dict) else arguments:
            yield from _strings(argument)


def _refuse_unknown(graphs: Sequence[GraphToCompile]) -> None:
    """Reject control flow that AOTInductor has no code for."""
    known = {aot_autograd.CALL_ON_COPIES, *(getattr(torch.ops.higher_order, name) for name in _CONTROL_FLOW)}
    unknown = {
        (source_line(node) or item.key, _NEEDS_GRADIENTS.get(node.target.name(), f"higher_order.{node.target.name()}"))
        for item, node in _nodes(graphs)
        if isinstance(node.target, torch._ops.HigherOrderOperator) and node.target not in known
    }
    if unknown:
        raise BuildError(
            "The cpu target cannot compile control flow that this model uses.",
            [Problem(where, what) for where, what in sorted(unknown)],
            hint='Build with targets=("portable",), which runs it. If the model is not trained: methods=("infer",).',
        )

"""The CPU target compiles forward and backward graphs with AOTInductor for a named instruction set."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from aotpack_loader.devices import cpuinfo
from aotpack_loader.errors import BuildError, Problem
from aotpack_loader.format import donations, media_types, schema

from .. import _torch as compat
from .._torch.randomness import call_generator_operators
from ..graph import source_line
from ..graph.expressions import render
from ..writer.bundle import BlobStore, TargetEntry
from ..writer.cache import CompileCache, revision_of
from .base import GraphToCompile
from .call_library import add_call_library, library_bytes
from .parts import in_parts

_Files = dict[str, bytes]
_Layouts = Mapping[int, Sequence[int]]
"""Maps an output to its dimensions from outermost to innermost in memory; outputs with the graph's
strides are omitted.
"""
_FACTS = "layouts, own, constraints, imports"
"""Names of the facts that are stored with compiled code; part of the cache's key."""
_SOURCES = (Path(compat.__file__).parent, Path(__file__).parent)
"""Sources that decide which code a graph gets.

Their hash and the applied torch fixes are part of the cache's key.
"""


class CpuTarget:
    """AOTInductor code for one x86-64 level (``cpu:x86-64-v3``); without a variant, the build
    machine's level.
    """

    uses_inductor = True

    def __init__(self, variant: str = "") -> None:
        if cpuinfo.architecture() != "amd64":
            if variant and variant != "native":
                raise BuildError(f"cpu:{variant} cannot be built on {cpuinfo.architecture()}; use cpu.")
            self.level, self.march = "native", None
            self.needed = tuple(sorted(cpuinfo.features()))
            return
        if not compat.can_name_instruction_set():
            raise BuildError(
                f"torch {torch.__version__} cannot compile for a named instruction set.",
                hint="Build with a newer torch, or with --target portable.",
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

    def decompositions(self, *, exact_random: bool) -> compat.Decompositions:
        """Inductor's own decompositions: the partition is then the same as ``torch.compile``'s."""
        return compat.inductor_decompositions(exact_random=exact_random)

    def compile(
        self, graphs: Sequence[GraphToCompile], state: Sequence[schema.StateEntry], store: BlobStore, cache: CompileCache
    ) -> TargetEntry:
        _refuse_unknown(graphs)
        graphs, sequences = in_parts(graphs)
        executables: dict[str, schema.Executable] = {}
        layers: list[schema.Descriptor] = []
        constraints: dict[str, set[str]] = {}
        imports: set[str] = set()
        toolchain = compat.inductor_fingerprint()
        with tempfile.TemporaryDirectory(prefix="aotpack-") as folder, ThreadPoolExecutor(os.cpu_count()) as workers:
            library = workers.submit(library_bytes)
            jobs = self._start(graphs, cache, toolchain, Path(folder), workers)
            for item, call, finish in jobs:
                files = finish()
                facts = json.loads(files["facts"])
                imports.update(facts["imports"])
                if found := facts["constraints"]:
                    constraints.setdefault(item.key.partition(".")[0], set()).update(found)
                code = store.add_compressed(files["code"], media_types.CODE_AOTI)
                layers.append(code)
                fallbacks = None
                if "fallbacks" in files:
                    fallbacks = store.add_bytes(files["fallbacks"], media_types.CODE_FALLBACKS)
                    layers.append(fallbacks)
                executables[item.key] = schema.Executable(code, call.inputs, call.outputs, fallbacks, call.numbers, call.donated)
            compiled = library.result()
        calls = None if compiled is None else add_call_library(compiled, store)
        if calls is not None:
            layers.append(calls.code)
        release = ".".join(torch.__version__.split(".")[:2])
        target = schema.Target(
            name=self.name,
            kind="aoti",
            device="cpu",
            executables=executables,
            sequences=sequences,
            constraints={name: sorted(found) for name, found in sorted(constraints.items())},
            architecture=cpuinfo.architecture(),
            instruction_set=self.level,
            cpu_features=list(self.needed),
            torch=f"=={release}.*",
            toolchain=toolchain,
            call=calls,
            imports=sorted(imports),
        )
        variant = self.level.removeprefix("x86-64-") if self.march else ""
        return TargetEntry(target, schema.Platform(cpuinfo.architecture(), "linux", variant), layers)

    @property
    def _options(self) -> dict[str, str]:
        return {"march": str(self.march), "bits": str(self._bits())}

    def _bits(self) -> int | None:
        return None if self.march is None else compat.x86_vector_bits(self.level)

    def _start(
        self,
        graphs: Sequence[GraphToCompile],
        cache: CompileCache,
        toolchain: Mapping[str, str],
        folder: Path,
        workers: Executor,
    ) -> list[tuple[GraphToCompile, _Call, Callable[[], _Files]]]:
        """Lower one graph after another while earlier ones compile.

        The returned functions wait for the code.
        """
        jobs: list[tuple[GraphToCompile, _Call, Callable[[], _Files]]] = []
        layouts: _Layouts = {}
        own: set[int] = set()
        for item in graphs:  # a forward graph comes before its backward
            saved_layouts = {i: layouts[output] for i, output in item.saved.items() if output in layouts}
            call = _prepare(item, saved_layouts, {i for i, output in item.saved.items() if output in own})
            made_by = {
                "facts": _FACTS,
                "revision": revision_of(*_SOURCES),
                **compat.record_of_fixes(inductor=True, untested=False),
            }
            options = {**toolchain, **self._options, "call": call.fingerprint, **made_by}
            found = cache.find(item.graph, options)
            if found is None:
                library, written = self._lower(call, item.key, folder / item.key)
                library.start(workers)
                jobs.append(
                    (item, call, partial(self._finish, item.key, library, written, partial(cache.keep, item.graph, options)))
                )
            else:
                facts = json.loads(found["facts"])
                written = [compat.OutputLayout(*pair) for pair in zip(facts["layouts"], facts["own"], strict=True)]
                jobs.append((item, call, partial(dict, found)))
            outputs = {i: written[position] for i, position in enumerate(call.outputs)}
            layouts = {i: output.order for i, output in outputs.items() if output.order}
            # The outputs of a part are not the outputs of its graph.
            own = set() if item.method is None else {i for i, output in outputs.items() if output.own}
        return jobs

    def _lower(self, call: _Call, key: str, folder: Path) -> tuple[compat.Library, list[compat.OutputLayout]]:
        """Lower a graph; returns its library sources, and the layout of each output that the code
        writes.
        """
        target = partial(compat.lower_with_aoti, march=self.march, vector_bits=self._bits())
        lower = partial(target, training=call.training, saved=call.free, consumed=call.consumed, donated=call.donated)
        with compat.own_warnings(), self._refusing(key):
            library, written = lower(call.module, call.examples, folder / "code.so", free=call.free)
            plain = [position for position in call.free if written[position].order is not None]
            if plain != call.free:  # padded: a backward could not be compiled for such strides
                library, written = lower(call.module, call.examples, folder / "plain" / "code.so", free=plain)
        return library, written

    def _finish(
        self, key: str, library: compat.Library, written: Sequence[compat.OutputLayout], keep: Callable[[_Files], None]
    ) -> _Files:
        with self._refusing(key):
            library.finish()
        constraints = sorted({render(guard) for guard in library.guards if guard not in (True, False)})
        layouts, own = [item.order for item in written], [item.own for item in written]
        imports = compat.imports_from_torch(library.output)
        facts = json.dumps({"layouts": layouts, "own": own, "constraints": constraints, "imports": imports})
        files = {"code": library.output.read_bytes(), "facts": facts.encode()}
        for fallbacks in library.output.parent.glob("*.wrapper.json"):
            files["fallbacks"] = fallbacks.read_bytes()
        keep(files)
        return files

    @contextlib.contextmanager
    def _refusing(self, key: str) -> Iterator[None]:
        try:
            yield
        except BuildError:
            raise
        except Exception as error:
            nodes = error.nodes if isinstance(error, compat.LoweringError) else []
            line = next(filter(None, map(source_line, nodes)), "")
            names = ", ".join(dict.fromkeys(str(node.target) for node in nodes if node.op == "call_function"))
            reason = " ".join(str(error).split("\n", 1)[0].split()) or type(error).__name__
            raise BuildError(
                f"AOTInductor could not compile {key} for {self.name}.",
                [Problem(line or key, f"{names}: {reason}" if names else reason)],
                hint="Build with --target portable to get a bundle that runs without native code.",
            ) from error


_CONTROL_FLOW = ("cond", "while_loop", "scan", "map_impl", "invoke_subgraph", "flex_attention")


def _refuse_unknown(graphs: Sequence[GraphToCompile]) -> None:
    """Reject control flow that AOTInductor has no code for."""
    known = {compat.CALL_ON_COPIES, *(getattr(torch.ops.higher_order, name) for name in _CONTROL_FLOW)}
    problems = [
        Problem(source_line(node) or item.key, f"{item.key} calls higher_order.{node.target.name()}")
        for item in graphs
        for module in item.module.modules()
        if isinstance(module, GraphModule)
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.HigherOrderOperator) and node.target not in known
    ]
    if problems:
        raise BuildError(
            "AOTInductor cannot compile control flow that this model uses.",
            problems,
            hint="Build with --target portable. A while_loop that needs gradients becomes while_loop_stack_output.",
        )


@dataclass(frozen=True)
class _Call:
    """A graph as AOTInductor accepts it: only tensors as inputs and outputs, each once.

    ``free`` are the outputs that may have any strides. ``consumed`` are the inputs that are unused
    after the code has read them. ``donated`` are the consumed inputs that may be overwritten.
    ``fingerprint`` is what the code depends on besides the graph.
    """

    module: GraphModule
    examples: list[torch.Tensor]
    inputs: list[schema.GivenInput | schema.SizeCarrier]
    outputs: list[int]
    numbers: list[int]
    training: bool
    free: list[int]
    consumed: list[int]
    donated: list[int]
    fingerprint: str


def _prepare(item: GraphToCompile, layouts: _Layouts, own: Collection[int]) -> _Call:
    """Copy the graph; replace integer inputs by sizes of tensors; return each output once.

    ``layouts``: the order of dimensions in which the forward's code writes what it saves. ``own``:
    the inputs that the forward writes to memory of their own. Both refer to inputs by index.
    """
    graph = torch.fx.Graph()
    output = graph.graph_copy(item.module.graph, {})
    graph.output(output)
    module = GraphModule(item.module, graph)
    if layouts:
        _views_of_any_layout(graph)
    placeholders = graph.find_nodes(op="placeholder")
    bindings: list[tuple[Node, schema.GivenInput | schema.SizeCarrier]] = []
    for index, node in enumerate(placeholders):
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            if order := layouts.get(index):
                value = node.meta["val"] = compat.with_stride_order(value, order)
            bindings.append((node, schema.GivenInput(index)))
        elif not _read_off_a_tensor(graph, node, placeholders):
            bindings.append((_to_carrier(graph, node), schema.SizeCarrier(index)))
    bindings.sort(key=lambda pair: _has_derived_sizes(pair[0].meta["val"]))
    start = next(node for node in graph.nodes if node.op != "placeholder")
    for node, _ in bindings:
        start.prepend(node)
    examples = [node.meta["val"] for node, _ in bindings]
    inputs = [source for _, source in bindings]
    distinct: list[Node] = []
    positions: list[int] = []
    for value in graph.output_node().args[0]:  # type: ignore[union-attr]
        if not isinstance(value, Node) or isinstance(value.meta["val"], (bool, torch.SymBool)):
            raise BuildError(f"{item.key} returns a bool that depends on data; the cpu target cannot return it.")
        if value not in distinct:
            distinct.append(value)
        positions.append(distinct.index(value))
    numbers = [position for position, value in enumerate(distinct) if not isinstance(value.meta["val"], torch.Tensor)]
    for position in numbers:
        distinct[position] = _as_tensor(graph, distinct[position])
    graph.output_node().args = (tuple(distinct),)
    call_generator_operators(graph)
    graph.lint()
    module.recompile()
    promised = {position for output, position in enumerate(positions) if output not in item.private}
    free = [position for position in range(len(distinct)) if position not in promised]
    donatable = set() if item.method is None or not item.saved else donations.private(item.method) & set(own)
    consumed = [i for i, source in enumerate(inputs) if isinstance(source, schema.GivenInput) and source.index in item.saved]
    donated = [i for i in consumed if inputs[i].index in donatable]
    fingerprint = json.dumps([item.training, free, consumed, donated, sorted(layouts.items())])
    return _Call(module, examples, inputs, positions, numbers, item.training, free, consumed, donated, fingerprint)


def _views_of_any_layout(graph: torch.fx.Graph) -> None:
    """Replace ``view`` by ``reshape``: a saved value's layout may now differ, and a view that does
    not exist becomes a copy.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default


def _as_tensor(graph: torch.fx.Graph, node: Node) -> Node:
    """Convert a number to a 0-dimensional tensor: compiled code returns only tensors."""
    dtype = torch.float64 if isinstance(node.meta["val"], (float, torch.SymFloat)) else torch.int64
    with graph.inserting_before(graph.output_node()):
        tensor = graph.call_function(torch.ops.aten.scalar_tensor.default, (node,), {"dtype": dtype})
    with compat.fake_mode_of(graph):
        tensor.meta["val"] = torch.empty((), dtype=dtype)
    return tensor


def _read_off_a_tensor(graph: torch.fx.Graph, node: Node, placeholders: list[Node]) -> bool:
    """Replace an integer input by a size of a tensor input that equals it; returns whether there is
    one.
    """
    wanted = node.meta["val"]
    if not isinstance(wanted, torch.SymInt):
        return False
    for other in placeholders:
        tensor = other.meta["val"]
        if not isinstance(tensor, torch.Tensor):
            continue
        sizes: Any = tensor.shape
        for dim, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and size.node.expr == wanted.node.expr:
                _replace_by_size(graph, node, other, dim)
                return True
    return False


def _has_derived_sizes(tensor: torch.Tensor) -> bool:
    """Whether a size is computed from others, such as half of one; compiled code must read those
    others first.
    """
    sizes: Any = tensor.shape
    return any(isinstance(size, torch.SymInt) and not size.node.expr.is_Atom for size in sizes)


def _to_carrier(graph: torch.fx.Graph, node: Node) -> Node:
    """Replace an integer input by an empty tensor of shape ``(size, 0)``: AOTInductor takes no
    integers in a backward.
    """
    size = node.meta["val"]
    if compat.hint_of(size) < 0:
        raise BuildError(f"The backward needs {node.name}, an integer below 0; the cpu target cannot pass negative integers.")
    mode = compat.fake_mode_of(graph)
    with mode:
        carrier = torch.empty((size, 0), dtype=torch.float32, device="cpu")
    with graph.inserting_before(node):
        placeholder = graph.placeholder(f"{node.name}_carrier")
    placeholder.meta["val"] = carrier
    _replace_by_size(graph, node, placeholder, 0)
    return placeholder


def _replace_by_size(graph: torch.fx.Graph, node: Node, tensor: Node, dim: int) -> None:
    first = next(other for other in graph.nodes if other.op != "placeholder")
    with graph.inserting_before(first):
        read = graph.call_function(torch.ops.aten.sym_size.int, (tensor, dim))
    read.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(read)
    graph.erase_node(node)

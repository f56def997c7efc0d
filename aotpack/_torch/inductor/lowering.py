"""Ahead-of-time compilation of a graph with AOTInductor."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
import torch._dynamo
import torch._inductor
import torch._inductor.config as inductor_config
from torch._export.utils import _compiling_state_context
from torch._inductor import compile_fx
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import output_node
from torch.utils._ordered_set import OrderedSet

from aotpack_loader.errors import AotpackError

from ..api.counting import count_call, require_calls
from ..api.fake_tensors import fake_mode_of
from ..api.nodes import without_views
from ..api.patching import attribute_set, constant
from ..api.process_copy import ProcessCopy, copies_are_made, copy_that_computes, in_place
from ..fixes.applying import apply_fixes, fix_graph
from ..tracing.eager_kernels import eager_kernels_called
from .codegen.broadcasts import costly_operands_stored, stored_if_pooled
from .codegen.early_frees import buffers_freed_early
from .codegen.events import kernel_events
from .codegen.fft_gradients import real_gradients_of_spectra
from .codegen.half_results import rounded, with_numbers
from .codegen.in_place_sums import added_in_place
from .codegen.memory_order import memory_freed_early
from .codegen.negative_indices import as_indexing, refuse_negative_rows
from .codegen.parallel_loops import loops_worth_their_threads
from .codegen.residual_sums import stored_if_residual
from .codegen.rewrites import OPTIONS, rewritten
from .codegen.scatter_add import plain_additions
from .layouts import (
    as_in_eager,
    channels_last,
    contiguous_convolutions,
    convolution_gradients_in_layout,
    nodes_for_channels_last,
    output_layouts,
    with_converted_outputs,
)
from .second_trace import without_second_trace
from .toolchain.commands import WRAPPER_LEVEL, Library, LoweringError, Sources, send_failure, send_sources, tool_chain


def can_name_instruction_set() -> bool:
    """Whether Inductor supports choosing ``-march``; torch 2.11 does not, and always uses the build
    machine's.
    """
    return hasattr(inductor_config.cpp, "march")


def x86_vector_bits(level: str) -> int:
    """Width in bits of the vectors that Inductor may use at an x86-64 level (psABI)."""
    return {"x86-64-v3": 256, "x86-64-v4": 512}.get(level, 1)


@dataclass(frozen=True)
class Code:
    """A library to make, for one instruction set.

    ``march`` is the compiler's ``-march``; null leaves Inductor's default. Products of at least
    ``products`` multiplications are oneDNN's, if it is not 0.
    """

    output: Path
    march: str | None
    vector_bits: int | None
    products: int = 0

    @property
    def options(self) -> dict[str, Any]:
        found = {"aot_inductor.output_path": str(self.output), "cpp.march": self.march, "cpp.simdlen": self.vector_bits}
        return {name: value for name, value in found.items() if value is not None}


class _PaddedError(BaseException):
    """Inductor gives some free outputs strides with gaps; ``plain`` are the others.

    No ``Exception``, because Inductor would explain that.
    """

    def __init__(self, plain: Sequence[int]) -> None:
        super().__init__()
        self.plain = plain


class _WrittenElsewhereError(BaseException):
    """Copies of this process write the sources."""


@dataclass(frozen=True)
class GraphToLower:
    """A graph, and what Inductor may do with its inputs and outputs.

    Args:
        module: the graph. Its inputs and outputs are tensors.
        inputs: a fake tensor for each input.
        key: the graph's name, for events of the profiler.
        training: whether the graph is one half of a training step. Inductor chooses layouts
            differently for such a half than for inference.
        runs: how often a step runs the code.
        free: the outputs that may have any strides. They are no results. All other outputs keep
            the strides of the graph. AOTInductor itself has no free outputs. It would copy what a
            convolution saves for the backward from channels-last to contiguous.
        consumed: the inputs that are freed once the code has read them. Inductor uses this when it
            reorders operations and reuses buffers to lower peak memory. It recognizes such inputs
            by name, but AOTInductor's names look like names of parameters.
        donated: the consumed inputs that the code may overwrite. ``torch.compile`` takes them from
            AOTAutograd's metadata, which AOTInductor does not have.
        restrided_inputs: the inputs whose strides are not those that the graph was traced with.
    """

    module: torch.fx.GraphModule
    inputs: Sequence[Any]
    key: str
    training: bool = False
    runs: int = 1
    free: Collection[int] = ()
    consumed: Collection[int] = ()
    donated: Collection[int] = ()
    restrided_inputs: Collection[int] = ()


def lower_with_aoti(graph: GraphToLower, codes: Sequence[Code]) -> list[Library]:
    """Lower a graph to the sources of shared libraries (AOTInductor), one for each of ``codes``.

    Lowering does not depend on the instruction set, and generating code does. So the graph is
    lowered once, and copies of this process generate code while this one goes on.

    Free outputs that Inductor would pad keep their strides after all, because a backward could not
    be compiled for such strides.

    Raises:
        LoweringError: Inductor has no code for some operator.
    """
    try:
        return _lower(graph, codes, graph.free)
    except _PaddedError as error:
        others = [replace(code, output=code.output.parent / "plain" / code.output.name) for code in codes]
        return _lower(graph, others, error.plain)


def lower_in_copy(lower: Callable[[], Library]) -> Library:
    """Lower a graph in a copy of this process, while this one goes on.

    The returned library has its paths, layouts and guards once it is finished. Errors of ``lower``
    are raised then; all are :class:`~aotpack_loader.errors.AotpackError`.
    """

    def sources() -> Sources | AotpackError:
        try:
            with in_place():
                return lower().sources()
        except AotpackError as error:
            return error

    library = Library(Path())
    library.copy = copy_that_computes(sources)
    return library


def _lower(graph: GraphToLower, codes: Sequence[Code], free: Collection[int]) -> list[Library]:
    if copies_are_made():
        return Lowering(graph, codes, free).run()
    return [library for code in codes for library in Lowering(graph, [code], free).run()]


class Lowering:
    """One run of Inductor over a graph. Only the outputs ``free`` may have other strides."""

    def __init__(self, graph: GraphToLower, codes: Sequence[Code], free: Collection[int]) -> None:
        self.graph, self.codes, self.free = graph, codes, free
        self.libraries = [Library(code.output, code.products, graph.runs) for code in codes]
        self.here = self.libraries[0]  # the library whose sources this process writes
        self.working: list[torch.fx.Node] = []  # what an error is about
        self._stack = contextlib.ExitStack()

    def run(self) -> list[Library]:
        """Write the sources of each library, here or in copies of this process."""
        env = fake_mode_of(self.graph.module.graph).shape_env
        known = 0 if env is None else len(env.guards)
        try:
            self._compile()
        except _WrittenElsewhereError:
            return self.libraries
        except BaseException as error:
            send_failure(self.here, error)
            raise
        if (
            env is not None
        ):  # the guards as first recorded: a simplified guard that fixes a size would compare the size with itself
            self.here.guards = [guard.expr for guard in env.guards[known:]]
        send_sources(self.here)
        return self.libraries

    graph_class: ClassVar[type[WatchedGraph]]
    rules: Mapping[Any, Any] = {}
    """Decompositions that the graph's device needs."""

    def _compile(self) -> None:
        class Watched(self.graph_class):  # type: ignore[name-defined,misc]
            lowering = self

        module = self.graph.module
        with (
            self._stack,
            torch.no_grad(),
            tool_chain(lambda: self.here),
            require_calls("inductor-graph-lowering", "inductor-second-trace", "inductor-tool-chain"),
            self._changes(),
            constant("inductor-graph-lowering", compile_fx, "GraphLowering", Watched),
            without_second_trace(self.graph.restrided_inputs, self.rules),
        ):
            flat, options = compile_fx._aoti_flatten_inputs(module, tuple(self.graph.inputs), options=self._options())
            try:
                inner: Any = self._compile_inner
                with _compiling_state_context():
                    compile_fx.compile_fx_aot(module, flat, inner_compile=inner, config_patches=options)
            except Exception as error:
                raise LoweringError(f"{type(error).__name__}: {error}", self.working) from error

    def _options(self) -> dict[str, Any]:
        """Inductor's options."""
        return {
            "cpp.dynamic_threads": True,
            "cpp.enable_kernel_profile": False,
            "fallback_random": True,
            "keep_output_stride": True,
            "size_asserts": False,
            "aot_inductor.compile_wrapper_opt_level": WRAPPER_LEVEL,
            **OPTIONS,
            # A loop's operands and results may be one buffer, of which Inductor's reuse in place does not know.
            "inplace_buffers": not any(map(_is_loop, self.graph.module.graph.nodes)),
            **self.codes[0].options,
        }

    @contextlib.contextmanager
    def _changes(self) -> Iterator[None]:
        """Changes of Inductor that the graph's device needs."""
        module = self.graph.module
        with (
            apply_fixes("inductor", module=module, saved=self.graph.free),
            plain_additions(),
            costly_operands_stored(),
            convolution_gradients_in_layout(),
            eager_kernels_called(),
            loops_worth_their_threads(),
            buffers_freed_early(),
            memory_freed_early(),
            refuse_negative_rows(),
            kernel_events(self.graph.key, module),
        ):
            yield

    def _compile_inner(self, module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        """Compile the graph that Inductor made of ours; its free outputs are no results."""
        real_gradients_of_spectra(module)
        fix_graph("inductor", module)
        as_indexing(module)
        self._rewrite(module)
        result = output_node(module)
        result.meta["user_visible_output_idxs"] = [i for i in result.meta["user_visible_output_idxs"] if i not in self.free]
        return compile_fx.compile_fx_inner(module, *args, **{**kwargs, "is_inference": not self.graph.training})

    def _rewrite(self, module: torch.fx.GraphModule) -> None:
        """Rewrite the graph that Inductor made of ours for the graph's device."""
        added_in_place(module)
        rewritten(module)

    def note_layouts(self, results: Sequence[Any]) -> None:
        """Keep how the code will write the results.

        Raises:
            _PaddedError: a free output would have gaps.
        """
        expected = [node.meta["val"] for node in output_node(self.graph.module).args[0]]  # type: ignore[union-attr]
        layouts = output_layouts(results, expected)
        if any(layouts[position].order is None for position in self.free):
            raise _PaddedError([position for position in self.free if layouts[position].order is not None])
        for library in self.libraries:
            library.layouts = layouts

    def go_on_in_copies(self, nodes: dict[str, torch.fx.Node]) -> None:
        """Return in a copy of this process for each library; raise in this process.

        ``nodes`` are Inductor's, by name.
        """
        for library, code in zip(self.libraries, self.codes, strict=True):
            library.copy, library.nodes = ProcessCopy(), nodes
            if library.copy.fork():
                self.here = library
                self._stack.enter_context(inductor_config.patch(code.options))
                return
        raise _WrittenElsewhereError


def _is_loop(node: torch.fx.Node) -> bool:
    """Whether a node runs a loop."""
    return node.target in (torch.ops.higher_order.while_loop, torch.ops.higher_order.scan)


class WatchedGraph(GraphLowering):
    """Inductor's lowering of a graph, with eager's strides and donated inputs."""

    lowering: ClassVar[Lowering]
    contiguous: Sequence[torch.fx.Node] = ()
    converted: Sequence[torch.fx.Node] = ()

    def placeholder(self, target: str, args: Any, kwargs: Any) -> Any:  # type: ignore[override]
        graph = self.lowering.graph
        self.bw_donated_idxs = list(graph.donated)
        position = self.placeholder_idx + 1
        name = f"saved_{position}" if position in graph.consumed else target
        with attribute_set(self, "is_backward", bool(graph.donated)):  # only here: elsewhere it would change lowerings
            return super().placeholder(name, args, kwargs)

    def find_nodes_prefer_channels_last(self) -> OrderedSet[torch.fx.Node]:
        nodes = list(cast("torch.fx.GraphModule", self.module).graph.nodes)
        contiguous = contiguous_convolutions(nodes, self.sizevars.optimization_hint)
        self.converted = with_converted_outputs(contiguous, nodes, self.sizevars.optimization_hint)
        self.contiguous = [node for node in contiguous if node not in self.converted]
        if not self.contiguous:
            return super().find_nodes_prefer_channels_last()
        return OrderedSet(nodes_for_channels_last(nodes, self.contiguous))

    def run_node(self, n: torch.fx.Node) -> Any:
        self.lowering.working = [n]
        in_its_layout = attribute_set(self, "layout_opt", False) if n in self.contiguous else contextlib.nullcontext()
        with in_its_layout:
            lowered = super().run_node(n)
            result = stored_if_pooled(n, stored_if_residual(n, rounded(n, lowered)))
            if result is not lowered:  # a later write to what it reads waits for it, too
                self.register_users_of(result)
        if n.op == "placeholder":
            return channels_last(result) if n in self.nodes_prefer_channels_last else result
        return as_in_eager(result, n.meta["val"].stride()) if n in self._shown or n in self.converted else result

    def call_function(self, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        lower = super().call_function
        return with_numbers(self.current_node, args, lambda args: lower(target, args, kwargs))

    @functools.cached_property
    def _shown(self) -> set[torch.fx.Node]:
        """Results for the user, and the tensors that they are views of."""
        return {node for result in self.user_visible_output_strides for node in (result, without_views(result))}

    def codegen_with_cpp_wrapper(self) -> Any:
        count_call("inductor-graph-lowering")
        self.lowering.note_layouts(self.graph_outputs)
        if copies_are_made():
            self.lowering.go_on_in_copies({node.name: node for node in self.module.graph.nodes})  # type: ignore[union-attr]
        try:
            return super().codegen_with_cpp_wrapper()
        except Exception:
            self.lowering.working = _origins(getattr(self.scheduler, "current_node", None))  # null before code generation starts
            raise


Lowering.graph_class = WatchedGraph


def _origins(kernel: Any) -> list[torch.fx.Node]:
    """The nodes that a kernel is made of."""
    buffers = [part.node for part in kernel.get_nodes()] if kernel is not None else []
    return [origin for buffer in buffers if buffer is not None for origin in buffer.get_origins()]

"""Inductor's decompositions, and ahead-of-time compilation of a graph with AOTInductor."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor
import torch._inductor.config as inductor_config
from torch._decomp import decompositions
from torch._export.utils import _compiling_state_context
from torch._inductor import compile_fx, ir, virtualized
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import output_node

from .aot_autograd import Decompositions
from .api.counting import must_be_reached, reached
from .api.fake_tensors import fake_mode_of
from .api.nodes import without_views
from .api.patching import attribute_set, hooked
from .api.process_copy import ProcessCopy, copies_are_made
from .api.random_operators import RANDOM
from .events import kernel_events
from .fixes.applying import apply_fixes, fix_graph
from .fixes.inductor.results import buffer_of
from .scatters import plain_additions
from .small_loops import one_thread_for_small_loops
from .toolchain import Library, LoweringError, send_failure, send_sources, tool_chain


def inductor_decompositions(*, exact_random: bool) -> Decompositions:
    """Inductor's decompositions.

    With them the partitioner sees what Inductor can fuse, and saves what Inductor would save.

    ``exact_random`` leaves out decompositions of random operators that draw other numbers than
    eager.

    Decompositions into operators that exist only after Inductor is imported are also left out: a
    stored graph must run without Inductor. Inductor applies these decompositions when it compiles.
    """
    own = {f"{name}{suffix}" for name in ("max_pool2d_with_indices", "max_pool3d_with_indices") for suffix in ("", "_backward")}
    with inductor_config.patch(fallback_random=exact_random):
        table = select_decomp_table()
    kept = {
        op: rule
        for op, rule in table.items()
        if op.__name__.partition(".")[0] not in own and not (exact_random and _draws_other_numbers(op))
    }
    return kept if exact_random else {**kept, torch.ops.aten.native_dropout.default: _dropout_by_vectors}


def _dropout_by_vectors(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout whose mask eager's kernel draws, many numbers at a time; the rest can be fused.

    Inductor's decomposition compares uniform numbers, which torch's generator draws one by one.
    """
    if not train or p in (0, 1) or not x.dtype.is_floating_point:
        result, mask = decompositions.native_dropout(x, p, train)
        return result, mask
    mask = torch.ops.aten.bernoulli.p(torch.empty_like(x, dtype=torch.bool), 1 - p)
    return x * mask * (1 / (1 - p)), mask


def _draws_other_numbers(op: Any) -> bool:
    """Whether Inductor's decomposition of ``op`` draws other numbers than eager; composite
    operators draw the same ones.
    """
    return RANDOM in getattr(op, "tags", ()) and not torch._C._dispatch_has_kernel_for_dispatch_key(
        op.name(), "CompositeImplicitAutograd"
    )


def can_name_instruction_set() -> bool:
    """Whether Inductor supports choosing ``-march``; torch 2.9 does not, and always uses the build
    machine's.
    """
    return hasattr(inductor_config.cpp, "march")


def x86_vector_bits(level: str) -> int:
    """Width in bits of the vectors that Inductor may use at an x86-64 level (psABI)."""
    return {"x86-64-v3": 256, "x86-64-v4": 512}.get(level, 1)


@dataclass(frozen=True)
class OutputLayout:
    """How compiled code writes an output.

    Args:
        order: the output's dimensions from outermost to innermost in memory. Empty if the strides
            are the graph's; null if they are not, and the output is not dense either.
        own: whether the output is dense, in memory that the code allocated and no input or other
            output shares.
    """

    order: list[int] | None
    own: bool


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


def lower_with_aoti(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    codes: Sequence[Code],
    *,
    key: str,
    training: bool = False,
    saved: Collection[int] = (),
    free: Collection[int] = (),
    consumed: Collection[int] = (),
    donated: Collection[int] = (),
) -> tuple[list[Library], list[OutputLayout]]:
    """Lower one graph to the sources of shared libraries (AOTInductor), one for each of ``codes``.

    Lowering does not depend on the instruction set, and generating code does. So the graph is
    lowered once, and copies of this process generate code while this one goes on.

    ``key`` is the graph's name, for events of the profiler. ``training``: the graph is one half of
    a training step, for which Inductor chooses layouts differently than for inference. ``saved``
    are the outputs that are not results. Among them, ``free`` outputs may have any strides; all
    other outputs keep the strides of the graph. AOTInductor itself has no free outputs. It would
    copy what a convolution saves for the backward from channels-last to contiguous. Outputs that
    Inductor would pad keep their strides too, because a backward could not be compiled for such
    strides.

    ``consumed`` are the inputs that are freed once the code has read them. Inductor uses this when
    it reorders operations and reuses buffers to lower peak memory. It recognizes such inputs by
    name, but AOTInductor's names look like names of parameters. ``donated`` are the consumed inputs
    that the code may overwrite. ``torch.compile`` takes them from AOTAutograd's metadata, which
    AOTInductor does not have.

    Returns the libraries, and how their code writes each output.

    Raises:
        LoweringError: Inductor has no code for some operator.
    """
    lower = functools.partial(_lower, module, inputs, key=key, training=training, saved=saved, consumed=consumed, donated=donated)
    try:
        if copies_are_made():
            return lower(codes, free=free)
        made = [lower([code], free=free) for code in codes]
        return [library for libraries, _ in made for library in libraries], made[0][1]
    except _PaddedError as error:
        plain = [replace(code, output=code.output.parent / "plain" / code.output.name) for code in codes]
        return lower_with_aoti(
            module,
            inputs,
            plain,
            key=key,
            training=training,
            saved=saved,
            free=error.plain,
            consumed=consumed,
            donated=donated,
        )


def _lower(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    codes: Sequence[Code],
    *,
    key: str,
    training: bool,
    saved: Collection[int],
    free: Collection[int],
    consumed: Collection[int],
    donated: Collection[int],
) -> tuple[list[Library], list[OutputLayout]]:
    options: dict[str, Any] = {
        "cpp.dynamic_threads": True,
        "cpp.enable_kernel_profile": False,
        "fallback_random": True,
        "keep_output_stride": True,
        "size_asserts": False,
        **codes[0].options,
    }
    expected = [node.meta["val"] for node in output_node(module).args[0]]  # type: ignore[union-attr]
    written: list[OutputLayout] = []
    working: list[torch.fx.Node] = []
    libraries = [Library(code.output, code.products) for code in codes]
    here = libraries[:1]  # the library whose sources this process writes

    def inner(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        fix_graph("inductor", gm)
        result = output_node(gm)
        result.meta["user_visible_output_idxs"] = [i for i in result.meta["user_visible_output_idxs"] if i not in free]
        return compile_fx.compile_fx_inner(gm, *args, **{**kwargs, "is_inference": not training})

    class Watched(GraphLowering):
        def placeholder(self, target: str, args: Any, kwargs: Any) -> Any:  # type: ignore[override]
            self.bw_donated_idxs = list(donated)
            position = self.placeholder_idx + 1
            name = f"saved_{position}" if position in consumed else target
            with attribute_set(self, "is_backward", bool(donated)):  # only here: elsewhere it would change lowerings
                return super().placeholder(name, args, kwargs)

        def run_node(self, n: torch.fx.Node) -> Any:
            working[:] = [n]
            result = super().run_node(n)
            if n.op == "placeholder":
                return _channels_last(result) if n in self.nodes_prefer_channels_last else result
            return _as_in_eager(result, n.meta["val"].stride()) if n in self.shown else result

        @functools.cached_property
        def shown(self) -> set[torch.fx.Node]:
            """Results for the user, and the tensors that they are views of."""
            return {node for result in self.user_visible_output_strides for node in (result, without_views(result))}

        def codegen_with_cpp_wrapper(self) -> Any:
            reached("inductor-graph-lowering")
            orders = [_dimension_order(*pair) for pair in zip(self.graph_outputs, expected, strict=True)]
            buffers = [None if _dense_order(value) is None else _buffer(value) for value in self.graph_outputs]
            own = [buffer is not None and buffers.count(buffer) == 1 for buffer in buffers]
            written.extend(map(OutputLayout, orders, own))
            if any(written[position].order is None for position in free):
                raise _PaddedError([position for position in free if written[position].order is not None])
            if copies_are_made():
                self._go_on_in_copies()
            try:
                return super().codegen_with_cpp_wrapper()
            except Exception:
                working[:] = _origins(getattr(self.scheduler, "current_node", None))  # null before code generation starts
                raise

        def _go_on_in_copies(self) -> None:
            """Return in a copy of this process for each library; raise in this process."""
            for library, code in zip(libraries, codes, strict=True):
                library.copy = ProcessCopy()
                library.nodes = {node.name: node for node in self.module.graph.nodes}  # type: ignore[union-attr]
                if library.copy.fork():
                    here[:] = [library]
                    stack.enter_context(inductor_config.patch(code.options))
                    return
            raise _WrittenElsewhereError

    env = fake_mode_of(module.graph).shape_env
    known = 0 if env is None else len(env.guards)
    try:
        with (
            contextlib.ExitStack() as stack,
            torch.no_grad(),
            tool_chain(lambda: here[0]),
            must_be_reached("inductor-graph-lowering", "inductor-tool-chain"),
            apply_fixes("inductor", module=module, saved=saved),
            plain_additions(),
            one_thread_for_small_loops(),
            hooked("inductor-graph-lowering", compile_fx, "GraphLowering", Watched),
            kernel_events(key, module),
        ):
            flat, options = compile_fx._aoti_flatten_inputs(module, tuple(inputs), options=options)
            try:
                with _compiling_state_context():
                    compile_fx.compile_fx_aot(module, flat, inner_compile=inner, config_patches=options)
            except Exception as error:
                raise LoweringError(f"{type(error).__name__}: {error}", working) from error
    except _WrittenElsewhereError:
        return libraries, written
    except BaseException as error:
        send_failure(here[0], error)
        raise
    if env is not None:  # the guards as first recorded: a simplified guard that fixes a size would compare the size with itself
        here[0].guards = [guard.expr for guard in env.guards[known:]]
    send_sources(here[0])
    return libraries, written


def _as_in_eager(value: Any, strides: Sequence[Any]) -> Any:
    """Give a tensor eager's strides, so that views of it stay views.

    For a view's base Inductor keeps only the stride order.
    """
    return ir.ExternKernel.require_exact_strides(value, strides) if isinstance(value, ir.TensorBox) and strides else value


def _origins(kernel: Any) -> list[torch.fx.Node]:
    """The nodes that a kernel is made of."""
    buffers = [part.node for part in kernel.get_nodes()] if kernel is not None else []
    return [origin for buffer in buffers if buffer is not None for origin in buffer.get_origins()]


def _channels_last(value: Any) -> Any:
    """A convolution's input with channels-last strides, if they match its memory: with one channel
    or one pixel.

    By its own strides the input would be contiguous. The convolution would return a contiguous
    output, and a copy would follow. ``torch.compile`` avoids this if the input is saved for the
    backward, because its graph returns the input.
    """
    if not isinstance(value, ir.TensorBox) or len(value.get_size()) != 4:
        return value
    strides = ir.FlexibleLayout.stride_ordered_for_memory_format(value.get_size(), torch.channels_last)
    return ir.try_match_insignificant_strides(value, strides)


def _buffer(value: Any) -> str | None:
    """Name of the buffer that holds a graph's output, possibly shared with other outputs; null if
    the graph did not make it.
    """
    buffer = buffer_of(value)
    if not isinstance(buffer, ir.Buffer) or isinstance(buffer, ir.InputBuffer):
        return None
    others = [*buffer.get_inputs_that_alias_output(), *buffer.get_mutation_names()]
    return None if others else buffer.get_name()


def with_stride_order(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A dense fake tensor like ``value``, with its dimensions in memory in ``order``, outermost
    first.
    """
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_permuted(value.shape, list(order), dtype=value.dtype, device=value.device)


def _dimension_order(value: Any, expected: torch.Tensor) -> list[int] | None:
    """Inductor's layout of an output, as :class:`OutputLayout` describes it."""
    known = virtualized.V.graph.sizevars
    sizes, strides = value.get_size(), value.get_layout().stride
    wide = [dim for dim, size in enumerate(sizes) if not known.statically_known_equals(size, 1)]
    own: list[Any] = [getattr(getattr(step, "node", None), "expr", step) for step in expected.stride()]
    if all(known.statically_known_equals(strides[dim], own[dim]) for dim in wide):
        return []
    return _dense_order(value)


def _dense_order(value: Any) -> list[int] | None:
    """An output's dimensions from outermost to innermost in memory; null if its strides leave gaps
    or overlap.
    """
    known = virtualized.V.graph.sizevars
    sizes, strides = value.get_size(), value.get_layout().stride
    order = sorted(range(len(sizes)), key=lambda dim: (-known.optimization_hint(strides[dim]), dim))
    step: Any = 1
    for dim in reversed(order):
        wide = not known.statically_known_equals(sizes[dim], 1)
        if wide and not known.statically_known_equals(strides[dim], step):
            return None
        step = step * sizes[dim]
    return order

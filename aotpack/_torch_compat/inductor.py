"""Inductor: decompositions, and compiling a graph ahead of time."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo
import torch._inductor
import torch._inductor.config as inductor_config
from torch._export.utils import _compiling_state_context
from torch._inductor import codecache, compile_fx, cpp_builder, cpu_vec_isa, ir, lowering, virtualized
from torch._inductor.codegen import cpp, cpp_wrapper_cpu
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes import reinplace
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.utils import output_node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from aotpack_loader.archive.cache import private_directory

from .autograd import Decompositions, without_views
from .overlaps import meets_itself
from .randomness import RANDOM, compiled_random
from .tensors import fake_mode_of


def inductor_decompositions(*, exact_random: bool) -> Decompositions:
    """Inductor's decompositions: with them the partitioner sees what Inductor can fuse, and saves what it would save.

    ``exact_random`` leaves out those of operators that draw random numbers: they draw others than eager.

    Those into operators that only exist once Inductor is imported are left out: a stored graph must run without it. Inductor
    applies them when it compiles.
    """
    own = {f"{name}{suffix}" for name in ("max_pool2d_with_indices", "max_pool3d_with_indices") for suffix in ("", "_backward")}
    with inductor_config.patch(fallback_random=exact_random):
        table = select_decomp_table()
    return {
        op: rule
        for op, rule in table.items()
        if op.__name__.partition(".")[0] not in own and not (exact_random and _draws_otherwise(op))
    }


def _draws_otherwise(op: Any) -> bool:
    """Whether Inductor's decomposition of ``op`` draws other numbers; of composite operators it is as good as torch's own."""
    return RANDOM in getattr(op, "tags", ()) and not torch._C._dispatch_has_kernel_for_dispatch_key(
        op.name(), "CompositeImplicitAutograd"
    )


def can_name_instruction_set() -> bool:
    """Whether Inductor lets us choose ``-march``: not in 2.9, where it is always the build machine's."""
    return hasattr(inductor_config.cpp, "march")


def x86_vector_bits(level: str) -> int:
    """Width in bits of the vectors Inductor may use at an x86-64 level (psABI)."""
    return {"x86-64-v3": 256, "x86-64-v4": 512}.get(level, 1)


class Library:
    """A shared library that AOTInductor has written the sources of: the compiler's commands, to be run beside those of others.

    AOTInductor runs them one after the other and waits for each; most of a build is spent in them. ``guards`` are the conditions
    on sizes that AOTInductor added to those of the trace.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.guards: list[Any] = []
        self._objects: list[str] = []
        self._link = ""
        self._running: list[Future[None]] = []

    def take(self, command: str, cwd: str) -> None:
        """Stands in for Inductor's ``run_compile_cmd``: keeps the commands of this library, runs others (headers)."""
        words = shlex.split(command)
        target = Path(words[words.index("-o") + 1])
        if target == self.output:
            self._link = command
            for word in words:  # AOTInductor removes objects once they are linked; those that are there now are needed then
                if word.endswith(".o") and os.path.getsize(word):
                    kept = f"{word}.kept.o"
                    os.link(word, kept)
                    self._link = self._link.replace(word, kept)
        elif any(word.endswith((".wrapper.cpp", ".kernel.cpp")) for word in words):
            self._objects.append(command)
            target.touch()
        else:
            _run_compiler(command, cwd)

    def start(self, workers: Executor) -> None:
        """Compile the objects."""
        self._running = [workers.submit(_run_compiler, command, os.fspath(self.output.parent)) for command in self._objects]

    def finish(self) -> None:
        """Wait for the objects, link them to ``output``, strip debug sections."""
        for running in self._running:
            running.result()
        _run_compiler(self._link, os.fspath(self.output.parent))
        # The build id is made of what has just been stripped: it knows where the sources lay.
        strip = ["strip", "--strip-unneeded", "--remove-section=.note.gnu.build-id", os.fspath(self.output)]
        subprocess.run(strip, check=True, capture_output=True)


_run_compiler = cpp_builder.run_compile_cmd


@dataclass(frozen=True)
class Written:
    """How compiled code writes an output.

    Args:
        order: of its dimensions in memory, outermost first; empty where its strides are the graph's; null where they are neither.
        own: whether the code made its memory, dense, and neither an input nor another output is in it.
    """

    order: list[int] | None
    own: bool


class LoweringError(Exception):
    """Inductor broke; ``nodes`` are what it was working on."""

    def __init__(self, error: Exception, nodes: Sequence[torch.fx.Node]) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.nodes = nodes


def lower_with_aoti(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    output: Path,
    *,
    march: str | None,
    vector_bits: int | None,
    training: bool = False,
    free: Collection[int] = (),
    consumed: Collection[int] = (),
    donated: Collection[int] = (),
) -> tuple[Library, list[Written]]:
    """Lower one graph to the sources of a shared library (AOTInductor).

    ``march`` is the compiler's ``-march``; null leaves Inductor's default. ``training``: one half of a training step, for which
    Inductor weighs layouts otherwise than for inference. ``free`` are the outputs that may have any strides; all others keep
    those of the graph. AOTInductor itself knows no free outputs: it would copy what a convolution keeps for the backward from
    channels-last to contiguous.

    ``consumed`` are the inputs that are freed once the code has read them: Inductor, which weighs orders and the reuse of buffers
    by the peak of memory, tells them by their names, and takes those that AOTInductor gives for names of parameters. ``donated``
    are those of them that the code may overwrite: ``torch.compile`` knows them from AOTAutograd's metadata, which AOTInductor
    does not have.

    Returns the library, and how the code writes each output.

    Raises:
        LoweringError: Inductor has no code for some operator.
    """
    options: dict[str, Any] = {
        "aot_inductor.output_path": str(output),
        "cpp.dynamic_threads": True,
        "cpp.enable_kernel_profile": False,
        "fallback_random": True,
        "keep_output_stride": True,
        "size_asserts": False,
    }
    if march is not None:
        options["cpp.march"] = march
    if vector_bits is not None:
        options["cpp.simdlen"] = vector_bits
    expected = [node.meta["val"] for node in output_node(module).args[0]]  # type: ignore[union-attr]
    written: list[Written] = []
    working: list[torch.fx.Node] = []

    def inner(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        _split_complex_numbers(gm.graph)
        gm.recompile()
        result = output_node(gm)
        result.meta["user_visible_output_idxs"] = [i for i in result.meta["user_visible_output_idxs"] if i not in free]
        return compile_fx.compile_fx_inner(gm, *args, **{**kwargs, "is_inference": not training})

    class Watched(GraphLowering):
        def placeholder(self, target: str, args: Any, kwargs: Any) -> Any:  # type: ignore[override]
            self.bw_donated_idxs = list(donated)
            position = self.placeholder_idx + 1
            name = f"saved_{position}" if position in consumed else target
            with mock.patch.object(self, "is_backward", bool(donated)):  # for this only: it would change other lowerings
                return super().placeholder(name, args, kwargs)

        def run_node(self, n: torch.fx.Node) -> Any:
            working[:] = [n]
            if n.target in _REDUCTIONS and _is_compared(without_views(n.all_input_nodes[0])):
                self.env[n.all_input_nodes[0]].realize()
            result = super().run_node(n)
            if n.op == "placeholder":
                return _channels_last(result) if n in self.nodes_prefer_channels_last else result
            return _as_in_eager(result, n.meta["val"].stride()) if n in self.shown else result

        @functools.cached_property
        def shown(self) -> set[torch.fx.Node]:
            """Results for the user, and what they are views of."""
            return {node for result in self.user_visible_output_strides for node in (result, without_views(result))}

        def codegen_with_cpp_wrapper(self) -> Any:
            orders = [_dimension_order(*pair) for pair in zip(self.graph_outputs, expected, strict=True)]
            buffers = [None if _dense_order(value) is None else _buffer(value) for value in self.graph_outputs]
            own = [buffer is not None and buffers.count(buffer) == 1 for buffer in buffers]
            written.extend(map(Written, orders, own))
            try:
                return super().codegen_with_cpp_wrapper()
            except Exception:
                working[:] = _origins(self.scheduler.current_node)
                raise

    library = Library(output)
    env = fake_mode_of(module.graph).shape_env
    known = 0 if env is None else len(env.guards)
    with (
        torch.no_grad(),
        _outside_ci(),
        _flags_of_ours(),
        _without_checks(),
        _quick_probes(),
        _tiles_indexed_once(),
        _pools_divided_rightly(),
        _copies_of_expanded(),
        _writes_read_after_fusion(),
        compiled_random(module),
        mock.patch.object(compile_fx, "GraphLowering", Watched),
        mock.patch.object(cpp_builder, "run_compile_cmd", library.take),
    ):
        flat, options = compile_fx._aoti_flatten_inputs(module, tuple(inputs), options=options)
        try:
            with _compiling_state_context():
                compile_fx.compile_fx_aot(module, flat, inner_compile=inner, config_patches=options)
        except Exception as error:
            raise LoweringError(error, working) from error
    if env is not None:
        library.guards = [env.simplify(guard.expr) for guard in env.guards[known:]]
    return library, written


_REDUCTIONS = (torch.ops.aten.amax.default, torch.ops.aten.amin.default, torch.ops.aten.max.default, torch.ops.aten.min.default)


def _is_compared(value: torch.fx.Node) -> bool:
    """Whether a value, or a view of it, is compared for equality, or returned, so that the backward may compare it.

    It is computed once, then, for all that read it: each by itself, they would have other last bits.
    """
    return any(
        user.op == "output" or user.target is torch.ops.aten.eq.Tensor or (without_views(user) is not user and _is_compared(user))
        for user in value.users
    )


def _as_in_eager(value: Any, strides: Sequence[Any]) -> Any:
    """A tensor with eager's strides, so that views of it are views. Of a view Inductor keeps no more than their order."""
    return ir.ExternKernel.require_exact_strides(value, strides) if isinstance(value, ir.TensorBox) and strides else value


def _origins(kernel: Any) -> list[torch.fx.Node]:
    """The nodes that a kernel is made of."""
    buffers = [part.node for part in kernel.get_nodes()] if kernel is not None else []
    return [origin for buffer in buffers if buffer is not None for origin in buffer.get_origins()]


def _channels_last(value: Any) -> Any:
    """What a convolution reads, with the strides of channels-last if its memory is that anyway: with one channel, or one pixel.

    By its own strides it would be contiguous, the convolution would return the like, and a copy would follow. ``torch.compile``
    is spared that where the input is saved for the backward, because its graph returns it.
    """
    if not isinstance(value, ir.TensorBox) or len(value.get_size()) != 4:
        return value
    strides = ir.FlexibleLayout.stride_ordered_for_memory_format(value.get_size(), torch.channels_last)
    return ir.try_match_insignificant_strides(value, strides)


def _buffer(value: Any) -> str | None:
    """The name of the memory that an output of a graph is in; null if the graph did not make it.

    What the trace takes for separate may be in one buffer: Inductor writes values where their concatenation is to be.
    """
    buffer = virtualized.V.graph.try_get_buffer(value.get_name())
    while isinstance(buffer, ir.Buffer) and isinstance(buffer.layout, ir.NonOwningLayout):
        buffer = virtualized.V.graph.try_get_buffer(buffer.layout.view.get_name())
    if not isinstance(buffer, ir.Buffer) or isinstance(buffer, ir.InputBuffer):
        return None
    others = [*buffer.get_inputs_that_alias_output(), *buffer.get_mutation_names()]
    return None if others else buffer.get_name()


def laid_out(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A fake tensor like ``value``, dense, with its dimensions in memory in ``order``, outermost first."""
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_permuted(value.shape, list(order), dtype=value.dtype, device=value.device)


def _dimension_order(value: Any, expected: torch.Tensor) -> list[int] | None:
    """How Inductor lays out an output, as in :class:`Written`."""
    known = virtualized.V.graph.sizevars
    sizes, strides = value.get_size(), value.get_layout().stride
    wide = [dim for dim, size in enumerate(sizes) if not known.statically_known_equals(size, 1)]
    own: list[Any] = [getattr(getattr(step, "node", None), "expr", step) for step in expected.stride()]
    if all(known.statically_known_equals(strides[dim], own[dim]) for dim in wide):
        return []
    return _dense_order(value)


def _dense_order(value: Any) -> list[int] | None:
    """The dimensions of an output by their place in memory, outermost first; null if it leaves gaps or overlaps itself."""
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


@contextlib.contextmanager
def _outside_ci() -> Iterator[None]:
    """Inductor refuses where CI is set what it only warns of elsewhere: a build is the same everywhere."""
    with mock.patch.dict(os.environ):
        os.environ.pop("CI", None)
        yield


@contextlib.contextmanager
def _flags_of_ours() -> Iterator[None]:
    """Keep this machine's paths out of compiled code (``__FILE__`` in messages), so that it is the same bytes everywhere.

    And link it so that it asks for no executable stack, as AOTInductor's object of constants does by omission: loading it would
    make every stack of the process executable, and from glibc 2.41 on it is refused.
    """
    flags, compiler = cpp_builder._get_optimization_cflags, codecache.AotCodeCompiler
    include = Path(torch.__file__).parent / "include"

    def mapped(*args: Any, **kwargs: Any) -> tuple[list[str], list[str]]:
        compiling, linking = flags(*args, **kwargs)
        plain = [flag for flag in compiling if flag != "g1"]  # debug sections are stripped: they would only cost time
        own = _own_headers(include)
        first = [] if own is None else [f"I{own}", f"ffile-prefix-map={own}=torch/include"]
        return [*first, *plain, f"ffile-prefix-map={include}=torch/include"], [*linking, "Wl,-z,noexecstack"]

    class Renamed(compiler):  # type: ignore[misc,valid-type]
        @classmethod
        def compile(cls, graph: Any, wrapper_code: str, kernel_code: str, *args: Any, **kwargs: Any) -> Any:
            wrapper_code = f'#line 1 "wrapper.cpp"\n{wrapper_code}'
            kernel_code = f'#line 1 "kernel.cpp"\n{kernel_code}' if kernel_code else kernel_code
            return super().compile(graph, wrapper_code, kernel_code, *args, **kwargs)

    with (
        mock.patch.object(cpp_builder, "_get_optimization_cflags", mapped),
        mock.patch.object(codecache, "AotCodeCompiler", Renamed),
    ):
        yield


_MODEL_BASE = Path("torch", "csrc", "inductor", "aoti_runtime", "model_base.h")
_WITHOUT_REGEX = {
    "#include <regex>": "#include <functional>",
    """\
  std::regex re("(cpu|cuda|xpu|mps)(:([0-9]+))?");
  std::smatch sm;
  bool matched = std::regex_match(device_str, sm, re);
  AOTI_RUNTIME_CHECK(matched, "Invalid device: " + device_str);
""": """\
  const auto colon = device_str.find(':');
  const std::string device = device_str.substr(0, colon);
""",
    "sm[1].str()": "device",
    "sm[3].matched": "colon != std::string::npos",
    "sm[3].str()": "device_str.substr(colon + 1)",
}


def _own_headers(include: Path) -> Path | None:
    """A folder with those of torch's headers that compiled code is better without, or null where torch's are others.

    AOTInductor's code reads the name of its device with a regular expression. That is half of what the C++ compiler works on and
    half of a small library, and done anew whenever one is opened. The folder is beside torch's precompiled headers, which are
    made anew for every path.
    """
    text = (include / _MODEL_BASE).read_text()
    if not all(part in text for part in _WITHOUT_REGEX):
        return None
    for old, new in _WITHOUT_REGEX.items():
        text = text.replace(old, new)
    root = private_directory(Path(codecache._HEADER_DIR).with_name("aotpack_headers"), "TMPDIR")
    folder = root / hashlib.sha256(text.encode()).hexdigest()[:16]
    header = folder / _MODEL_BASE
    if not header.exists() or header.read_text() != text:
        header.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=header.parent, delete=False) as file:
            file.write(text)
        Path(file.name).replace(header)
    return folder


@contextlib.contextmanager
def _without_checks() -> Iterator[None]:
    """Leave out AOTInductor's own checks of every input's type, sizes and strides.

    They run only if AOTI_RUNTIME_CHECK_INPUTS is set; the loader checks arguments itself, and all that a graph is given under
    ``check="full"``. They are most of the wrapper's source: a fifth of the C++ compiler's time and of the code with 23 inputs,
    more with more.
    """

    def none(wrapper: cpp_wrapper_cpu.CppWrapperCpu) -> None:
        wrapper.prefix.splice_aot("static void __check_inputs_outputs(AtenTensorHandle*, AtenTensorHandle*) {}")

    with mock.patch.object(cpp_wrapper_cpu.CppWrapperCpu, "generate_input_output_runtime_checks", none):
        yield


@contextlib.contextmanager
def _tiles_indexed_once() -> Iterator[None]:
    """Mend addresses in Inductor's tiles: where it adds at an indirect index (the gradient of ``x[..., [i], :]``), it counts
    the place in the tile twice (torch 2.13), and writes elsewhere. ``torch.compile`` gives wrong gradients there, or crashes.
    """
    transform = cpp.CppTile2DKernel.transform_indexing

    def once(kernel: cpp.CppTile2DKernel, index: Any) -> Any:
        return index if index.has(kernel.inner_itervar()) else transform(kernel, index)

    with mock.patch.object(cpp.CppTile2DKernel, "transform_indexing", once):
        yield


@contextlib.contextmanager
def _pools_divided_rightly() -> Iterator[None]:
    """Call ATen's kernel for gradients of average pooling whose last window may reach over the edge (``ceil_mode``).

    Inductor (torch 2.13) divides them by the size of the whole window, also where padding counts as the forward does not:
    ``torch.compile`` gives wrong gradients there. And it raises where one number stands for all dimensions (``padding=(1,)``).
    """

    def rule(inductors: Callable[..., Any], kernel: Callable[..., Any], dimensions: int) -> Callable[..., Any]:
        def lower(grad: Any, x: Any, size: Any, stride: Any, padding: Any, ceil_mode: bool, *rest: Any) -> Any:
            lists = [list(numbers) * (dimensions if len(numbers) == 1 else 1) for numbers in (size, stride, padding)]
            return (kernel if ceil_mode else inductors)(grad, x, *lists, ceil_mode, *rest)

        return lower

    kernels = {
        torch.ops.aten.avg_pool2d_backward.default: (lowering.fallback_avg_pool2d_backward, 2),
        torch.ops.aten.avg_pool3d_backward.default: (lowering.fallback_avg_pool3d_backward, 3),
    }
    rules = {operator: rule(lowering.lowerings[operator], *kernel) for operator, kernel in kernels.items()}
    with mock.patch.dict(lowering.lowerings, rules):
        yield


@contextlib.contextmanager
def _copies_of_expanded() -> Iterator[None]:
    """Let values be written into a copy of a tensor whose elements share memory (``x.expand(4, -1).index_add(0, i, y)``).

    Inductor (torch 2.13) writes into the tensor itself, if nothing else reads it, and so each value to all that share its place:
    ``torch.compile`` gives wrong results there.
    """

    def apart(operation: reinplace.InplaceableOp) -> Callable[[torch.fx.Node], bool]:
        def check(node: torch.fx.Node) -> bool:
            return operation.extra_check(node) and not _may_meet_itself(node.args[0].meta["val"])  # type: ignore[union-attr]

        return check

    known = reinplace.inplaceable_ops
    writes: list[Callable[..., Any]] = [
        torch.ops.aten.index_put.default,
        torch.ops.aten._unsafe_index_put.default,
        reinplace._generalized_scatter,
    ]
    checked = {write: replace(known[write], extra_check=apart(known[write])) for write in writes}
    with mock.patch.dict(known, checked):
        yield


def _split_complex_numbers(graph: torch.fx.Graph) -> None:
    """Make tensors of one complex number of two real ones: AOTInductor (torch 2.13) cannot write such a number (the gradient of
    ``fft.rfft(x).abs()`` has one).
    """
    full = torch.ops.aten.full.default
    for node in graph.find_nodes(op="call_function", target=full):
        size, number, value = node.args[0], node.args[1], node.meta["val"]
        if isinstance(number, complex):
            parts = []
            with graph.inserting_before(node):
                for part in (number.real, number.imag):
                    options = node.kwargs | {"dtype": value.dtype.to_real()}
                    parts.append(graph.call_function(full, (size, part), options))
                    parts[-1].meta |= node.meta | {"val": torch.empty_like(value, dtype=value.dtype.to_real())}
                whole = graph.call_function(torch.ops.aten.complex.default, tuple(parts))
                whole.meta |= node.meta
            node.replace_all_uses_with(whole)
            graph.erase_node(node)


def _may_meet_itself(value: torch.Tensor) -> bool:
    """Whether two elements of a tensor may be one in memory; of an expanded one, if only its size may be more than 1."""
    expanded = (n for n, step in zip(value.shape, value.stride(), strict=True) if statically_known_true(step == 0))
    return meets_itself(value) or not all(statically_known_true(n == 1) for n in expanded)


@contextlib.contextmanager
def _writes_read_after_fusion() -> Iterator[None]:
    """Have loops that are made anew, to be fused with others, still come after the writes whose results they read.

    Inductor (torch 2.13) tells what such loops read from their bodies, which name a buffer as it was before all writes, and
    forgets to put the writes' names back: where it finds another order better, they run before the write. ``torch.compile``
    gives wrong gradients there.
    """
    recompute = SchedulerNode.recompute_size_and_body

    def renamed(node: Any, *args: Any, **kwargs: Any) -> None:
        recompute(node, *args, **kwargs)
        node.set_read_writes(node.read_writes.rename(node.mutation_renames))

    with mock.patch.object(SchedulerNode, "recompute_size_and_body", renamed):
        yield


@contextlib.contextmanager
def _quick_probes() -> Iterator[None]:
    """Find out which instruction sets there are by asking the compiler whether it takes their flags.

    Inductor compiles a program with ATen's headers for each that the processor has, three to six, and loads it: two seconds each,
    in every process that finds none in its cache. They tell whether torch was built with a compiler that knew the set, too; its
    wheels are.
    """

    def takes_flags(isa: cpu_vec_isa.VecISA, code: str) -> bool:
        source = "" if code == cpu_vec_isa.VecISA._avx_code else code  # others are small, and need no header of torch's
        command = [cpp_builder.get_cpp_compiler(), *shlex.split(isa.build_arch_flags()), "-x", "c++", "-fsyntax-only", "-"]
        return subprocess.run(command, input=source, capture_output=True, text=True, check=False).returncode == 0

    with mock.patch.object(cpu_vec_isa.VecISA, "check_build", takes_flags):
        yield


def inductor_fingerprint() -> dict[str, str]:
    """What a compiled graph depends on besides the graph: the tool chain's versions and options that are not the target's."""
    compiler = os.environ.get("CXX") or "g++"
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
    found = {
        "torch": str(torch.__version__),
        "compiler": version,
        "linker": "noexecstack",
        "max_autotune": str(inductor_config.max_autotune),
    }
    return found | ({"deterministic": "True"} if torch.are_deterministic_algorithms_enabled() else {})

"""Every private, release-dependent torch API the compiler touches, and nothing else.

Tried on: torch 2.13.0 (everything), 2.9.0 (portable bundles). Each function says what it wraps, so that a new release means
reading one file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import operator
import os
import re
import shlex
import subprocess
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch._dynamo
import torch._inductor
import torch._inductor.config as inductor_config
import torch._inductor.lowering
from torch._decomp import decompositions as lstm_decompositions
from torch._dynamo import functional_export
from torch._dynamo.source import ConstantSource
from torch._export.utils import _compiling_state_context
from torch._functorch import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import descriptors as desc
from torch._functorch._aot_autograd.graph_compile import run_joint_graph_passes_on_hops
from torch._functorch._aot_autograd.runtime_wrappers import AOTSyntheticBaseWrapper
from torch._functorch._aot_autograd.schemas import MutationType, OutputType, ViewAndMutationMeta
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._guards import tracing
from torch._higher_order_ops.base_hop import BaseHOP
from torch._higher_order_ops.effects import with_effects
from torch._higher_order_ops.scan import ScanAutogradImpl
from torch._higher_order_ops.utils import get_dummy_aot_autograd_config
from torch._inductor import codecache, compile_fx, cpp_builder, virtualized
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import output_node
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental import _config as shapes_config
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    RelaxedUnspecConstraint,
    ShapeEnv,
    StatelessSymbolicContext,
    StrictMinMaxConstraint,
    SubclassSymbolicContext,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, transform_subclass
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from aotpack_loader.errors import Problem, UnsupportedError

from ._torch_random import RANDOM, compiled_random, is_effectful, partitioned_random

TRIED_ON = ("2.13.0", "2.9.0")

__all__ = [
    "TRIED_ON",
    "MutationType",
    "OutputType",
    "ShapeEnv",
    "StorageWeakRef",
    "ViewAndMutationMeta",
    "desc",
    "int_oo",
    "with_effects",
]

Decompositions = dict[Any, Callable[..., Any]]


class Bounds(NamedTuple):
    """How a size varies; null is unbounded. ``automatic``: only where the model lets it (``torch.export.Dim.AUTO``)."""

    minimum: int | None = None
    maximum: int | None = None
    automatic: bool = False


DynamicDims = Mapping[int, Bounds]
"""Dimension to how its size varies."""


class Touched(NamedTuple):
    """Inputs whose version counter moves when the model runs: leaf numbers of the arguments, names of parameters and buffers."""

    leaves: frozenset[int]
    names: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Joint:
    """The joint graph of a model, or its forward graph alone where nothing needs a gradient.

    ``num_forward``: how many of the graph's outputs are the forward's. ``gradient_metas``: which gradients are tensor
    subclasses, as AOTAutograd describes them; None where no subclass is involved.
    """

    graph_module: torch.fx.GraphModule
    metadata: ViewAndMutationMeta
    needs_autograd: bool
    shape_env: ShapeEnv | None
    primal_descriptors: list[desc.AOTInput]
    side_effects: tuple[str, ...]
    compares: bool
    num_forward: int
    gradient_metas: list[Any] | None
    synthetic_bases: bool
    fake_mode: FakeTensorMode
    tokens: int
    backward_tokens: int
    touched: Touched | None = None

    @property
    def num_forward_outputs(self) -> int:
        """Outputs of the joint graph that are the forward's: effect tokens, values written back, results, bases."""
        return self.tokens + self.num_forward

    @property
    def num_gradients(self) -> int:
        """Outputs of the backward that are gradients, none included: one for each primal, or for each part of a subclass."""
        if self.gradient_metas is None:
            return len(self.primal_descriptors)
        return sum(getattr(meta, "arg_count", 1) for meta in self.gradient_metas)

    def touches(self, descriptor: desc.AOTInput) -> bool | None:
        """Whether running the model moves the version counter of an input; None where that is not known."""
        if self.touched is None:
            return None
        if isinstance(descriptor, desc.PlainAOTInput):
            return descriptor.idx in self.touched.leaves
        return getattr(descriptor, "target", None) in self.touched.names


@contextlib.contextmanager
def own_warnings() -> Iterator[None]:
    """Keep torch's own deprecation warnings from the user's terminal, and the user's warning filters from the build."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


# ------------------------------------------------------------------ front ends


def free_sizes() -> contextlib.AbstractContextManager[Any]:
    """While a model is traced and compiled: a size that varies may be 0 or 1, and differ from another of the same hint.

    Torch otherwise takes sizes of 0 and 1 for constants, and equal sizes for one. What depends on it is a guard then.
    """
    return shapes_config.patch(backed_size_oblivious=True, use_duck_shape=False)  # type: ignore[attr-defined,no-any-return]


@contextlib.contextmanager
def marked_dynamic(dims: Sequence[tuple[torch.Tensor, DynamicDims]]) -> Iterator[None]:
    """Mark sizes of example tensors dynamic for Dynamo (``mark_dynamic``), and take the marks off again."""
    before = [dict(tensor.__dict__) for tensor, _ in dims]
    try:
        for tensor, sizes in dims:
            for dim, bounds in sizes.items():
                if bounds.automatic:
                    torch._dynamo.maybe_mark_dynamic(tensor, dim)
                else:
                    one_sided = bounds.minimum is not None and bounds.maximum is None
                    torch._dynamo.mark_dynamic(tensor, dim, min=bounds.minimum, max=int_oo if one_sided else bounds.maximum)
        yield
    finally:
        for (tensor, _), attributes in zip(dims, before, strict=True):
            for name in set(tensor.__dict__) - set(attributes):
                delattr(tensor, name)


def capture_with_dynamo(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.GraphModule:
    """Trace with Dynamo's export front end; keeps pytrees, parameter names and activation checkpoints.

    A bundle's graphs have no place for messages: calls that only print, warn or log are left out of the trace.
    """
    torch._dynamo.reset()
    ignored = "ignore_logging_functions" if hasattr(torch._dynamo.config, "ignore_logging_functions") else _OLD_IGNORED
    with (
        torch._dynamo.config.patch(
            {
                "specialize_int": True,
                "assume_static_by_default": True,
                "automatic_dynamic_shapes": False,
                "capture_scalar_outputs": True,
                "use_numpy_random_stream": True,  # refused then; else NumPy's numbers would be torch's
                ignored: getattr(torch._dynamo.config, ignored) | _message_functions(),
            }
        ),
        # Else the value of a 0-dimensional example would be a hint, and decisions would be made on it.
        mock.patch.object(torch._subclasses.fake_tensor, "_is_plain_tensor", return_value=False),
        warnings.catch_warnings(record=True) as caught,
        _watched_identity() as compared,
        _watched_changes() as changed,
    ):
        warnings.simplefilter("always")
        captured = _graph_capture(model)(*args, **kwargs)
    refuse_changes(changed)
    captured.meta[SIDE_EFFECTS] = _side_effects([str(warning.message) for warning in caught])
    captured.meta[COMPARES] = bool(compared)
    return captured


COMPARES = "aotpack_compares"


@contextlib.contextmanager
def _watched_identity() -> Iterator[list[str]]:
    """Collects where Dynamo lets the identity of tensors decide: ``is``, ``id()``, keys of dictionaries and sets."""
    found: list[str] = []
    builtin, tensor = torch._dynamo.variables.BuiltinVariable, torch._dynamo.variables.TensorVariable
    hash_name = "hash_impl" if hasattr(tensor, "hash_impl") else "get_python_hash"
    comparison, identity, hashed = builtin._comparison_with_tensor, builtin.call_id, getattr(tensor, hash_name)

    def watched_comparison(self: Any, tx: Any, left: Any, right: Any) -> Any:
        are_tensors = isinstance(left, tensor) and isinstance(right, tensor)
        if self.fn in (operator.is_, operator.is_not) and are_tensors and left.source and right.source:
            found.append(self.fn.__name__)
        return comparison(self, tx, left, right)

    def watched_identity(self: Any, tx: Any, *args: Any) -> Any:
        found.extend("id" for arg in args if isinstance(arg.realize(), tensor) and arg.source)
        return identity(self, tx, *args)

    def watched_hash(self: Any, *args: Any) -> Any:
        found.extend(["hash"] if self.source else [])
        return hashed(self, *args)

    with (
        mock.patch.object(builtin, "_comparison_with_tensor", watched_comparison),
        mock.patch.object(builtin, "call_id", watched_identity),
        mock.patch.object(tensor, hash_name, watched_hash),
    ):
        _forget_handlers()
        try:
            yield found
        finally:
            _forget_handlers()


def _forget_handlers() -> None:
    """Dynamo keeps the handlers of built-in functions that it has looked up."""
    torch._dynamo.variables.BuiltinVariable._binop_handlers.cache_clear()
    torch._dynamo.variables.BuiltinVariable.call_function_handler_cache.clear()


@contextlib.contextmanager
def _watched_changes() -> Iterator[set[str]]:
    """Collects Python values that the model reads and changes: Dynamo guards what is read, and tracks what is changed."""
    found: set[str] = set()
    graph = torch._dynamo.output_graph.OutputGraph
    name = "get_replayed_side_effect_source_refs"
    original = getattr(graph, name, None)  # 2.9 has it under no name of its own

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        found.update(_read_and_changed(self))
        return original(self, *args, **kwargs)  # type: ignore[misc]

    with mock.patch.object(graph, name, watched) if original is not None else contextlib.nullcontext():
        yield found


def _read_and_changed(graph: Any) -> Iterator[str]:
    read: dict[str, set[str]] = {}
    for guard in graph.guards:
        create = getattr(guard.create_fn, "func", guard.create_fn)
        read.setdefault(guard.name, set()).add(create.__name__)
    effects = graph.side_effects
    for variable in effects._get_modified_vars():
        if variable.source is None:
            continue
        source = variable.source.name
        source = source() if callable(source) else source  # a method in older releases
        if source.endswith(("._buffers", "._parameters")):
            continue  # another front end may take these (``kept_state_changes``)
        if source.startswith("G['__import_torch_"):
            continue  # torch's own, such as which warnings it has shown
        for attribute, value in effects.store_attr_mutations.get(variable, {}).items():
            names = {f"{source}.{attribute}", f"{source}.__dict__[{attribute!r}]"}
            if names & read.keys() and not _is_as_before(variable, attribute, value):
                yield f"{source}.{attribute}"
        if isinstance(variable.mutation_type, torch._dynamo.variables.base.ValueMutationExisting):
            items = [name for name, kinds in read.items() if name.startswith(f"{source}[") and kinds & _VALUE_GUARDS]
            if items or read.get(source, set()) & _MEMBER_GUARDS:
                yield min(items, default=source)


_VALUE_GUARDS = {"EQUALS_MATCH", "CONSTANT_MATCH", "TENSOR_MATCH"}
_MEMBER_GUARDS = {"DICT_CONTAINS", "DICT_NOT_CONTAINS", "SET_CONTAINS", "SET_NOT_CONTAINS"}


def _is_as_before(owner: Any, attribute: str, value: Any) -> bool:
    """Whether a plain value is set to what it was."""
    before = getattr(getattr(owner, "value", None), attribute, value)
    return value.is_python_constant() and bool(value.as_python_constant() == before)


def refuse_changes(changed: Collection[str]) -> None:
    """Refuse a model whose results depend on a Python value that it changes.

    Raises:
        UnsupportedError: names each value.
    """
    if changed:
        raise UnsupportedError(
            "The model reads Python values and changes them while it runs; a bundle keeps tensors only.",
            [Problem(name.replace("L['self']", "self"), "read, and changed for the next call") for name in sorted(changed)],
            hint="Keep such a value in a buffer, and change it in place (self.count.add_(1)).",
        )


def _graph_capture(model: torch.nn.Module) -> Callable[..., torch.fx.GraphModule]:
    """Dynamo's export front end: public in all but name since 2.10, underscored in 2.9."""
    capture = getattr(functional_export, "dynamo_graph_capture_for_export", None)
    return capture(model) if capture is not None else functional_export._dynamo_graph_capture_for_export(model)


SIDE_EFFECTS = "aotpack_side_effects"


def _side_effects(messages: Sequence[str]) -> tuple[str, ...]:
    """What the model changes besides tensors. Dynamo's export front end drops that: state must not get lost so.

    Raises:
        SideEffectError: a tensor was assigned to a buffer or parameter.
    """
    effects = " ".join(message for message in messages if "side effects" in message)
    if "._buffers" in effects or "._parameters" in effects:
        raise SideEffectError(ASSIGNS_STATE)
    return tuple(dict.fromkeys(re.findall(r"\bL\[[^\s,\"]+", effects)))


class SideEffectError(Exception):
    """The model changes something that the graphs of a bundle do not hold."""


ASSIGNS_STATE = "assigns a new tensor to a buffer or parameter; write into it with copy_() or another in-place operation"


@contextlib.contextmanager
def kept_state_changes() -> Iterator[None]:
    """While tracing without Dynamo: a buffer that is assigned anew is written into, so that the change is seen.

    Raises:
        SideEffectError: what is assigned has another type or shape, carries gradients, or takes a parameter's place.
    """
    original = torch.nn.Module.__setattr__

    def guarded(module: torch.nn.Module, name: str, value: Any) -> None:
        buffer = module.__dict__.get("_buffers", {}).get(name)
        parameter = module.__dict__.get("_parameters", {}).get(name)
        if (buffer is None and parameter is None) or value is buffer or value is parameter:
            return original(module, name, value)
        if buffer is None or not isinstance(value, torch.Tensor) or value.requires_grad:
            raise SideEffectError(ASSIGNS_STATE)
        if value.shape != buffer.shape or value.dtype != buffer.dtype:
            raise SideEffectError(ASSIGNS_STATE)
        buffer.copy_(value)
        return None

    torch.nn.Module.__setattr__ = guarded  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.__setattr__ = original  # type: ignore[method-assign]


def rehearse(
    mode: FakeTensorMode, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, strict: bool = True
) -> Touched:
    """Run the model eagerly on fake tensors: what eager refuses, tracing without Dynamo would let through.

    Not ``strict``: only to have it set up what it sets up at its first call.

    Returns what it touches. Kernels may write without saying so (BatchNorm's statistics), and in-place operators may find
    nothing to do: only running tells.

    Raises:
        SideEffectError: ``requires_grad`` or ``data`` of a tensor is changed.
        Exception: whatever the model raises.
    """

    def twin(tensor: torch.Tensor) -> torch.Tensor:
        copy = blank_like(tensor).requires_grad_(tensor.requires_grad)
        return copy if tensor.is_leaf else copy.clone()

    with mode:
        twins: dict[int, torch.Tensor] = {}
        args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: twins.setdefault(id(t), twin(t)), (args, kwargs))
        state = {name: twin(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        leaves = {
            i: leaf for i, leaf in enumerate(torch.utils._pytree.tree_leaves((args, kwargs))) if isinstance(leaf, torch.Tensor)
        }
        before = {id(tensor): tensor._version for tensor in (*leaves.values(), *state.values())}
        with _RefusedFunctions() if strict else contextlib.nullcontext():
            torch.func.functional_call(model, state, args, kwargs)
        return Touched(
            frozenset(i for i, tensor in leaves.items() if tensor._version != before[id(tensor)]),
            frozenset(name for name, tensor in state.items() if tensor._version != before[id(tensor)]),
        )


class _RefusedFunctions(TorchFunctionMode):
    """Refuses operations that act on autograd or storage behind the graph's back."""

    _refused = frozenset(
        {torch.Tensor.requires_grad_, torch.Tensor.data.__set__, torch.Tensor.requires_grad.__set__}  # type: ignore[attr-defined]
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._refused and not _changes_nothing(func, *args, **(kwargs or {})):
            name = getattr(func, "__name__", str(func))
            raise SideEffectError(f"calls {name} on a tensor while it runs, which a bundle cannot repeat")
        return func(*args, **(kwargs or {}))


def _changes_nothing(func: Any, tensor: torch.Tensor, value: Any = True, *, requires_grad: Any = None) -> bool:
    """Whether a tensor is only said to require a gradient that already does, or the reverse."""
    return func is not torch.Tensor.data.__set__ and tensor.requires_grad == (value if requires_grad is None else requires_grad)  # type: ignore[attr-defined]


_OLD_IGNORED = "ignore_logger_methods"
_MESSAGES = ("log", "debug", "info", "warn", "warning", "error", "exception", "critical", "fatal")


def _message_functions() -> set[Callable[..., Any]]:
    """``print``, ``warnings.warn`` and what emits a message through ``logging``.

    Libraries add to ``logging.Logger`` (transformers: ``warning_once``), so its names are looked up.
    """
    owners = (logging, logging.Logger)
    emitters = {f for owner in owners for name, f in vars(owner).items() if name.partition("_")[0] in _MESSAGES}
    return {print, warnings.warn, *filter(callable, emitters)}


@contextlib.contextmanager
def dynamo_contexts(captured: torch.fx.GraphModule) -> Iterator[None]:
    """The fake mode and tracing context in which a Dynamo capture goes on to AOTAutograd."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracing(captured.meta["tracing_context"]))
        stack.enter_context(captured.meta["fake_mode"])
        yield


def fake_mode_with_shapes() -> FakeTensorMode:
    """A fake mode of our own, for the front ends that bring none."""
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def fake_tensor(mode: FakeTensorMode, tensor: torch.Tensor, dims: DynamicDims) -> torch.Tensor:
    """A fake copy of ``tensor`` whose sizes in ``dims`` are symbols; those of a subclass's parts where they have its sizes."""
    return mode.from_tensor(tensor, symbolic_context=_symbolic_context(tensor, dims))


def _symbolic_context(tensor: torch.Tensor, dims: DynamicDims) -> Any:
    options: dict[str, Any] = {
        "dynamic_sizes": [DimDynamic.DYNAMIC if i in dims else DimDynamic.STATIC for i in range(tensor.dim())],
        "constraint_sizes": [_constraint(dims[i]) if i in dims else None for i in range(tensor.dim())],
    }
    if not is_wrapper_subclass(tensor):
        return StatelessSymbolicContext(**options)
    parts = {name: getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]}  # type: ignore[attr-defined]
    inner = {name: _symbolic_context(part, dims if part.shape == tensor.shape else {}) for name, part in parts.items()}
    return SubclassSymbolicContext(**options, inner_contexts=inner, tensor_source=ConstantSource("argument"))


def _constraint(bounds: Bounds) -> Any:
    minimum, maximum, automatic = bounds
    if automatic:
        return None
    if minimum is None and maximum is None:
        return RelaxedUnspecConstraint(warn_only=False)
    low = 0 if minimum is None else minimum
    return StrictMinMaxConstraint(vr=ValueRanges(low, int_oo if maximum is None else maximum), warn_only=False)


@contextlib.contextmanager
def unguarded_convolutions() -> Iterator[None]:
    """Trace convolutions without fixing the batch size.

    Choosing a convolution backend while tracing asks whether the batch is large; the answer only picks a kernel, but
    torch would record it as a condition on the size. The choice is made again at run time, so the condition is dropped.
    """
    names = ("_select_conv_backend", "_conv_determine_backend_memory_format")
    originals = {name: getattr(torch._C, name) for name in names}

    def unguarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            values = torch.utils._pytree.tree_leaves((args, kwargs))
            env = next((v.fake_mode.shape_env for v in values if isinstance(v, torch._subclasses.FakeTensor)), None)
            with env.suppress_guards() if env is not None else contextlib.nullcontext():
                return function(*args, **kwargs)

        return call

    for name, function in originals.items():
        setattr(torch._C, name, unguarded(function))
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(torch._C, name, function)


@contextlib.contextmanager
def scans_without_aliases() -> Iterator[None]:
    """Trace scans whose backward needs a result of the step: torch returns such a result twice, and refuses its own alias."""
    original: Callable[[Any], None] = ScanAutogradImpl._optimize_forward_intermediates

    def patched(self: Any) -> None:
        original(self)
        forward = self.hop_partitioned_graph.fw_gm
        output = forward.graph.output_node()
        results: list[torch.fx.Node] = []
        for result in output.args[0]:
            results.append(self._insert_clone(result, output) if result in results else result)
        output.args = (tuple(results),)
        forward.recompile()

    with mock.patch.object(ScanAutogradImpl, "_optimize_forward_intermediates", patched):
        yield


# ------------------------------------------------------------------ AOTAutograd


def export_joint(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    decompositions: Decompositions | None = None,
    *,
    note: Callable[[Any], list[Any]],
) -> Joint:
    """Trace the joint graph through AOTAutograd (``aot_export_joint_with_descriptors``).

    All mutations are functionalised out of the graphs: the loader applies them. ``note`` sees what the module returns, and gives
    the leaves that are traced. A module that turns gradients on while they are off is traced once more, for its gradients too.
    """
    joint = _export_joint(module, args, kwargs, decompositions, note)
    if torch.is_grad_enabled() or not _records_gradients(joint.metadata):
        return joint
    with torch.enable_grad():
        return _export_joint(module, args, kwargs, decompositions, note, inside=torch.no_grad)


def _records_gradients(metadata: ViewAndMutationMeta) -> bool:
    """Whether a result that is computed requires a gradient, though gradients are off."""
    kinds = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
    return any(info.requires_grad and info.output_type in kinds for info in metadata.output_info)


def _export_joint(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    decompositions: Decompositions | None,
    note: Callable[[Any], list[Any]],
    inside: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Joint:
    """``inside``: the context that the module runs in while it is traced."""
    with (
        contextlib.ExitStack() as stack,
        functorch_config.patch(_SUBCLASS_TANGENTS),
        _aliases_named(),
        _faithful_results(note, inside),
        scans_without_aliases(),
        _trained_lstms(),
    ):
        joint = aot_autograd.aot_export_joint_with_descriptors(stack, module, args, kwargs, decompositions=decompositions)
        state, capture = joint._aot_state, joint._aot_graph_capture
        mode = getattr(state, "fake_mode", None) or fake_mode_of(joint.graph_module.graph)  # 2.9 keeps it elsewhere
        descriptors: Any = capture.updated_flat_args_descs
        subclasses = capture.maybe_subclass_meta
        if state.needs_autograd:
            descriptors = descriptors[0]
        tokens = len(state.fw_metadata.tokens)
        return Joint(
            graph_module=joint.graph_module,
            metadata=state.fw_metadata,
            needs_autograd=state.needs_autograd,
            shape_env=mode.shape_env,
            primal_descriptors=list(descriptors)[tokens:],
            side_effects=getattr(module, "meta", {}).get(SIDE_EFFECTS, ()),
            compares=getattr(module, "meta", {}).get(COMPARES, False),
            num_forward=_num_forward(state.fw_metadata, subclasses),
            gradient_metas=None if subclasses is None else subclasses.grad_input_metas or [],
            synthetic_bases=any(isinstance(w, AOTSyntheticBaseWrapper) and w.needs_post_compile for w in capture.wrappers),
            fake_mode=mode,
            tokens=tokens,
            backward_tokens=state.fw_metadata.num_backward_tokens,
        )


@contextlib.contextmanager
def _trained_lstms() -> Iterator[None]:
    """Keep LSTMs whose weights get gradients out of oneDNN's inference kernel, which keeps nothing for a backward.

    torch takes it wherever the input alone needs no gradient.
    """
    select: Callable[..., Any] = lstm_decompositions.select_one_layer_lstm_function

    def chosen(given: torch.Tensor, hidden: Any, weights: Any) -> Any:
        trained = torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in torch.utils._pytree.tree_leaves((hidden, weights))
        )
        return lstm_decompositions.one_layer_lstm if trained else select(given, hidden, weights)

    with mock.patch.object(lstm_decompositions, "select_one_layer_lstm_function", chosen):
        yield


@contextlib.contextmanager
def _faithful_results(
    note: Callable[[Any], list[Any]], inside: Callable[[], contextlib.AbstractContextManager[Any]]
) -> Iterator[None]:
    """Let ``note`` see results before they are flattened, and keep views of multi-output operations views.

    AOTAutograd hides from autograd that results of one ``chunk`` share memory, as an optimisation: in-place changes that eager
    refuses would go through.
    """
    flattened: Callable[..., Any] = aot_autograd.create_tree_flattened_fn  # type: ignore[attr-defined]

    def noted(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def run(*a: Any, **k: Any) -> list[Any]:
            with inside():
                return note(function(*a, **k))

        return flattened(run, *args, **kwargs)

    with (
        mock.patch.object(aot_autograd, "create_tree_flattened_fn", noted),
        mock.patch.object(torch, "_functionalize_is_multi_output_view", return_value=False),
    ):
        yield


def has_effect(target: Any) -> bool:
    """Whether an operator does more than to return values: it writes to an argument, or is registered as effectful."""
    return isinstance(target, torch._ops.OpOverload) and (target._schema.is_mutable or is_effectful(target))


_GUESS = "disable_guess_zero_tangent_for_mutated_input_subclass"
_SUBCLASS_TANGENTS = {_GUESS: True} if hasattr(functorch_config, _GUESS) else {}
"""The gradient of a subclass that is written to is one of its class, not a plain tensor of zeros: the loader makes such zeros."""


class AliasedOutputsError(Exception):
    """Outputs (``positions``) share memory with each other beside tensor subclasses, which AOTAutograd does not trace."""

    def __init__(self, positions: list[int]) -> None:
        super().__init__("results share memory with each other")
        self.positions = positions
        self.places = [f"result {position}" for position in positions]


@contextlib.contextmanager
def _aliases_named() -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        found = re.search(r"alias one another, specifically output indices:\s*\[([\d, ]*)\]", str(error))
        if found is None:
            raise
        raise AliasedOutputsError([int(number) for number in found.group(1).split(",")]) from error


def _num_forward(metadata: ViewAndMutationMeta, subclasses: Any) -> int:
    """How many values the forward returns; a tensor subclass counts as its parts and its sizes that vary."""
    if subclasses is None:
        return int(metadata.num_forward)
    counts = [getattr(meta, "arg_count", 1) for meta in metadata.subclass_fw_graph_out_meta]
    return sum(counts) + metadata.num_forward - metadata.num_forward_returns


def is_wrapper_subclass(value: object) -> bool:
    """Whether a tensor holds others and says how it comes apart (``__tensor_flatten__``)."""
    return is_traceable_wrapper_subclass(value)


def is_plain_tensor(value: object) -> bool:
    """A tensor or parameter, also a fake one, not a subclass of a user."""
    return type(value) in _PLAIN_TENSORS


_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor, FunctionalTensor)


def is_nested_size(size: int | torch.SymInt) -> bool:
    """Whether a size is that of a jagged dimension, which is another for each row."""
    return isinstance(size, torch.SymInt) and size.node.is_nested_int()


Split = Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]]
"""A partitioner: joint graph, its inputs or null, ``num_fwd_outputs`` to forward and backward graphs."""


def partition(
    joint: Joint,
    *,
    partitioner: str,
    memory_budget: float | None,
    prepare: Callable[[torch.fx.GraphModule, Split], None],
    added: int = 0,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Split the joint graph into forward and backward; ``prepare`` is given it and the partitioner before.

    ``added``: outputs of the forward beyond AOTAutograd's.
    """
    static = list(range(joint.tokens + len(joint.primal_descriptors)))
    budget = functorch_config.activation_memory_budget if memory_budget is None else memory_budget
    with functorch_config.patch(activation_memory_budget=budget), partitioned_random(joint.graph_module), joint.fake_mode:
        split: Split = default_partition if partitioner == "default" else min_cut_rematerialization_partition
        prepare(joint.graph_module, split)
        keyword = {"num_fwd_outputs": joint.num_forward_outputs + added, "static_lifetime_input_indices": static}
        return split(joint.graph_module, None, **keyword)


def is_plain_call(target: Any) -> bool:
    """Whether a higher-order operator does no more than to call its subgraph on its other arguments (``invoke_quant``)."""
    return isinstance(target, BaseHOP)


def tell_calls_apart(region: torch.fx.GraphModule) -> None:
    """Number the calls of regions within a region anew: torch gives all of them the number of the call around them.

    A forward call and the backward call that belongs to it, which takes the same primals, get the same number.
    """
    calls = region.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    halves: dict[str, list[torch.fx.Node]] = {"fw": [], "bw": []}
    for call in calls:
        halves.get(str(call.args[1])[:2], []).append(call)
    for number, call in enumerate(halves["fw"]):
        call.meta["custom"] = {**call.meta.get("custom", {}), "call_id": number}
    free = halves["fw"][::-1]
    for call in halves["bw"]:
        name = str(call.args[1]).removeprefix("bw_").rpartition("_")[0]
        partner = next(fw for fw in free if fw.args[1] == f"fw_{name}" and fw.args[2:] == call.args[2 : len(fw.args)])
        free.remove(partner)
        call.meta["custom"] = {**call.meta.get("custom", {}), "call_id": partner.meta["custom"]["call_id"]}


def split_regions(module: torch.fx.GraphModule, split: Split) -> None:
    """Split each nested compile region of a joint graph with ``split``, and call its two halves instead.

    The forward half then returns what it saves, after its results; until then the backward computes the forward again.
    """
    config = dataclasses.replace(get_dummy_aot_autograd_config(), partition_fn=split)
    known = inspect.signature(run_joint_graph_passes_on_hops).parameters  # releases before 2.12 take it from the config
    keyword = {"default_partition_fn": split} if "default_partition_fn" in known else {}
    run_joint_graph_passes_on_hops(module, [], config, **keyword)


# ------------------------------------------------------------------ Inductor


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


def lower_with_aoti(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    output: Path,
    *,
    march: str | None,
    vector_bits: int | None,
    training: bool = False,
    free: Collection[int] = (),
) -> tuple[Library, list[list[int] | None]]:
    """Lower one graph to the sources of a shared library (AOTInductor).

    ``march`` is the compiler's ``-march``; null leaves Inductor's default. ``training``: one half of a training step, for which
    Inductor weighs layouts otherwise than for inference. ``free`` are the outputs that may have any strides; all others keep
    those of the graph. AOTInductor itself knows no free outputs: it would copy what a convolution keeps for the backward from
    channels-last to contiguous.

    Returns the library, and for each output how the code lays it out in memory: the order of its dimensions, outermost first;
    empty where its strides are the graph's; null where they are neither.
    """
    options: dict[str, Any] = {
        "aot_inductor.output_path": str(output),
        "cpp.dynamic_threads": True,
        "cpp.enable_kernel_profile": False,
        "fallback_random": True,
        "keep_output_stride": True,
    }
    if march is not None:
        options["cpp.march"] = march
    if vector_bits is not None:
        options["cpp.simdlen"] = vector_bits
    expected = [node.meta["val"] for node in output_node(module).args[0]]  # type: ignore[union-attr]
    orders: list[list[int] | None] = []

    def inner(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        result = output_node(gm)
        result.meta["user_visible_output_idxs"] = [i for i in result.meta["user_visible_output_idxs"] if i not in free]
        return compile_fx.compile_fx_inner(gm, *args, **{**kwargs, "is_inference": not training})

    class Watched(GraphLowering):
        def codegen_with_cpp_wrapper(self) -> Any:
            orders.extend(_dimension_order(*pair) for pair in zip(self.graph_outputs, expected, strict=True))
            return super().codegen_with_cpp_wrapper()

    library = Library(output)
    env = fake_mode_of(module.graph).shape_env
    known = 0 if env is None else len(env.guards)
    with (
        torch.no_grad(),
        _without_paths(),
        compiled_random(module),
        mock.patch.object(compile_fx, "GraphLowering", Watched),
        mock.patch.object(cpp_builder, "run_compile_cmd", library.take),
    ):
        flat, options = compile_fx._aoti_flatten_inputs(module, tuple(inputs), options=options)
        with _compiling_state_context():
            compile_fx.compile_fx_aot(module, flat, inner_compile=inner, config_patches=options)
    if env is not None:
        library.guards = [env.simplify(guard.expr) for guard in env.guards[known:]]
    return library, orders


def laid_out(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A fake tensor like ``value``, dense, with its dimensions in memory in ``order``, outermost first."""
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_permuted(value.shape, list(order), dtype=value.dtype, device=value.device)


def _dimension_order(value: Any, expected: torch.Tensor) -> list[int] | None:
    """How Inductor lays out an output, as :func:`lower_with_aoti` returns it."""
    known = virtualized.V.graph.sizevars
    sizes, strides = value.get_size(), value.get_layout().stride
    wide = [dim for dim, size in enumerate(sizes) if not known.statically_known_equals(size, 1)]
    own: list[Any] = [getattr(getattr(step, "node", None), "expr", step) for step in expected.stride()]
    if all(known.statically_known_equals(strides[dim], own[dim]) for dim in wide):
        return []
    order = sorted(range(len(sizes)), key=lambda dim: (-known.optimization_hint(strides[dim]), dim))
    step: Any = 1
    for dim in reversed(order):
        if dim in wide and not known.statically_known_equals(strides[dim], step):
            return None
        step = step * sizes[dim]
    return order


@contextlib.contextmanager
def _without_paths() -> Iterator[None]:
    """Keep this machine's paths out of compiled code (``__FILE__`` in messages), so that it is the same bytes everywhere."""
    flags, compiler = cpp_builder._get_optimization_cflags, codecache.AotCodeCompiler
    include = Path(torch.__file__).parent / "include"

    def mapped(*args: Any, **kwargs: Any) -> tuple[list[str], list[str]]:
        compiling, linking = flags(*args, **kwargs)
        return [*compiling, f"ffile-prefix-map={include}=torch/include"], linking

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


def inductor_fingerprint() -> dict[str, str]:
    """What a compiled graph depends on besides the graph: the tool chain's versions."""
    compiler = os.environ.get("CXX") or "g++"
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
    found = {"torch": str(torch.__version__), "compiler": version, "max_autotune": str(inductor_config.max_autotune)}
    return found | ({"deterministic": "True"} if torch.are_deterministic_algorithms_enabled() else {})


def tree_children(spec: Any) -> list[Any]:
    """Children of a pytree spec: a method since 2.10, an attribute before."""
    children = getattr(spec, "children", None)
    return list(children()) if callable(children) else list(spec.children_specs)


def fake_inputs_of(
    exported: torch.export.ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[FakeTensorMode, tuple[Any, ...], dict[str, Any]]:
    """The fake inputs an exported program was traced with, in the shape of the arguments."""
    values = {node.name: node.meta["val"] for node in exported.graph.find_nodes(op="placeholder")}
    names = [spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    flat = [values[name] for name in names]
    mode = next((v.fake_mode for v in values.values() if isinstance(v, torch._subclasses.FakeTensor)), None)
    leaves, spec = torch.utils._pytree.tree_flatten((args, kwargs))
    flat = [fake if isinstance(leaf, torch.Tensor) else leaf for leaf, fake in zip(leaves, flat, strict=True)]
    for leaf, fake in zip(leaves, flat, strict=True):
        if isinstance(leaf, torch.Tensor):
            fake.requires_grad_(leaf.requires_grad)
    mode = mode or FakeTensorMode(shape_env=ShapeEnv())
    mode.allow_non_fake_inputs = True
    fake_args, fake_kwargs = torch.utils._pytree.tree_unflatten(flat, spec)
    return mode, fake_args, fake_kwargs


def blank_like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same class, sizes and strides with elements of its own, whatever they are."""
    if not is_wrapper_subclass(tensor):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return transform_subclass(tensor, lambda _, part: blank_like(part))  # type: ignore[no-any-return]


def real_tensor(value: torch.Tensor) -> torch.Tensor | None:
    """The real tensor behind a constant of a traced graph, or None where only its shape is known."""
    if isinstance(value, torch._subclasses.FakeTensor):
        return value.constant
    if value.layout == torch.strided and value.numel() and not value.untyped_storage().data_ptr():
        return None
    if torch._is_functional_tensor(value) or isinstance(value, torch._subclasses.functional_tensor.FunctionalTensor):
        return None
    return value


def symbols_of(env: ShapeEnv, expression: str) -> set[Any]:
    """Symbols of the environment that occur in a rendered expression."""
    words = set("".join(c if c.isalnum() or c == "_" else " " for c in expression).split())
    return {symbol for symbol in env.var_to_range if str(symbol) in words}


def hint(env: ShapeEnv, symbol: Any) -> int | None:
    """The example's size behind a symbol."""
    values = getattr(env, "backed_var_to_val", None) or env.var_to_val
    value = values.get(symbol)
    return None if value is None else int(value)


def example_like(value: torch.Tensor) -> torch.Tensor:
    """A tensor of zeros of the type, sizes and strides that a fake tensor has at the example's sizes."""
    shape, stride = [[hint_of(size) for size in sizes] for sizes in (value.shape, value.stride())]
    return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device).zero_()


def hint_of(size: int | torch.SymInt) -> int:
    """A size at the example's sizes; 0 where the example does not tell."""
    if isinstance(size, torch.SymInt):
        return int(size.node.hint) if size.node.has_hint() else 0
    return size


def fake_mode_of(graph: torch.fx.Graph) -> FakeTensorMode:
    """The fake mode of a graph's values."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch._subclasses.FakeTensor):
            return value.fake_mode
    return FakeTensorMode(shape_env=ShapeEnv())


def participates_in_backward(info: Any) -> bool:
    """Whether an output takes part in the backward; releases before 2.12 do not tell views made under ``no_grad`` apart."""
    return bool(getattr(info, "requires_grad_for_backward", info.requires_grad))

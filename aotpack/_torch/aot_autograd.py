"""Traces a model's joint graph with AOTAutograd, and partitions it into forward and backward
graphs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
import torch._dynamo
import torch._inductor
import torch._inductor.lowering
from torch._decomp import decompositions as lstm_decompositions
from torch._functorch import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import descriptors as desc
from torch._functorch._aot_autograd.graph_compile import run_joint_graph_passes_on_hops
from torch._functorch._aot_autograd.runtime_wrappers import AOTSyntheticBaseWrapper
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch._higher_order_ops.base_hop import BaseHOP
from torch._higher_order_ops.utils import get_dummy_aot_autograd_config
from torch._inductor import config as inductor_config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import (
    ShapeEnv,
    statically_known_true,
)
from torch.utils.checkpoint import CheckpointPolicy

from .api.fake_tensors import fake_mode_of, is_wrapper_subclass
from .api.lines import name_backward, recorded_lines
from .api.nodes import without_views
from .dynamo import COMPARES, SIDE_EFFECTS
from .fake_run import VersionedWrites
from .fixes.aot_autograd.overlaps import RefusedOverlaps
from .fixes.aot_autograd.reshapes import ReshapeAliasMode
from .fixes.applying import apply_fixes, fix_graph, patched, reached, replaced
from .memory_budget import within_budget
from .randomness import is_effectful
from .refusals.dirty_arguments import DirtyArguments
from .refusals.gradient_writes import refused_gradient_writes

Decompositions = dict[Any, Callable[..., Any]]
Note = Callable[[Any, list[Any]], list[Any]]
"""Takes what a module returned and the leaves of its arguments; returns the leaves that are traced
as outputs.
"""

_SCANS = importlib.import_module("torch._higher_order_ops.scan")  # its package has a function of that name


@dataclasses.dataclass(frozen=True)
class Joint:
    """The joint graph of a model, or its forward graph alone if nothing needs a gradient.

    ``num_forward``: how many of the graph's outputs belong to the forward. ``gradient_metas``:
    AOTAutograd's description of the gradients that are tensor subclasses. It is None if there is no
    subclass. ``sparse``: maps the index of each result that is made sparse after the graph to its
    number of sparse dimensions.
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
    touched: VersionedWrites | None = None
    sparse: Mapping[int, int] = dataclasses.field(default_factory=dict)

    @property
    def num_forward_outputs(self) -> int:
        """Number of the joint graph's outputs that belong to the forward: effect tokens, mutated
        values, results, bases.
        """
        return self.tokens + self.num_forward

    @property
    def num_gradients(self) -> int:
        """Number of gradients that the backward returns, None included: one for each primal, or for
        each part of a subclass.
        """
        if self.gradient_metas is None:
            return len(self.primal_descriptors)
        return sum(getattr(meta, "arg_count", 1) for meta in self.gradient_metas)

    def touches(self, descriptor: desc.AOTInput) -> bool | None:
        """Whether running the model moves the version counter of an input; None if that is not
        known.
        """
        if self.touched is None:
            return None
        if isinstance(descriptor, desc.PlainAOTInput):
            return descriptor.idx in self.touched.leaves
        return getattr(descriptor, "target", None) in self.touched.names


@contextlib.contextmanager
def traceable_scans() -> Iterator[None]:
    """Make scans traceable whose backward needs a result of the step.

    Torch returns such a result twice, and then rejects the alias that it made itself.

    Torch 2.9 has other faults. It computes the step again, and rejects a carry's gradient that is a
    slice of another. It also drops gradients through a carry that starts as a tensor without one;
    eager's own gradients are wrong there.
    """
    implementation: Any = getattr(_SCANS, "ScanAutogradImpl", None)
    if implementation is None:
        create, operator = _SCANS.create_bw_fn, _SCANS.ScanAutogradOp
        with (
            mock.patch.object(_SCANS, "create_bw_fn", _with_dense_gradients(create)),
            mock.patch.object(operator, "apply", _with_carry_followed(operator.apply)),
        ):
            yield
        return
    original: Callable[[Any], None] = implementation._optimize_forward_intermediates

    def optimized(self: Any) -> None:
        original(self)
        forward = self.hop_partitioned_graph.fw_gm
        output = forward.graph.output_node()
        results: list[torch.fx.Node] = []
        for result in output.args[0]:
            results.append(self._insert_clone(result, output) if result in results else result)
        output.args = (tuple(results),)
        forward.recompile()

    with patched("aot-scan-returns-a-result-twice", implementation, "_optimize_forward_intermediates", optimized):
        yield


def _with_dense_gradients(create: Callable[..., Callable[..., list[Any]]]) -> Callable[..., Callable[..., list[Any]]]:
    def created(*args: Any) -> Callable[..., list[Any]]:
        backward = create(*args)
        return lambda *given: [item.contiguous() if isinstance(item, torch.Tensor) else item for item in backward(*given)]

    return created


def _with_carry_followed(apply: Callable[..., Any]) -> Callable[..., Any]:
    def applied(combine: Any, count: int, *rest: Any) -> Any:
        numbers, operands = rest[:2], list(rest[2:])
        if torch.is_grad_enabled() and any(isinstance(item, torch.Tensor) and item.requires_grad for item in operands):
            for i, item in enumerate(operands[:count]):
                if not item.requires_grad and (item.is_floating_point() or item.is_complex()):
                    operands[i] = item.detach().requires_grad_()
        return apply(combine, count, *numbers, *operands)

    return applied


def export_joint(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    decompositions: Decompositions | None = None,
    *,
    note: Note,
) -> Joint:
    """Trace the joint graph through AOTAutograd (``aot_export_joint_with_descriptors``).

    All mutations are functionalised out of the graphs; the loader applies them. ``note`` receives
    what the module returns and the leaves of its arguments, parameters included. A module that
    enables gradients while they are off is traced a second time, with its gradients.
    """
    joint = _export_joint(module, args, kwargs, decompositions, note)
    if torch.is_grad_enabled() or not _records_gradients(joint.metadata):
        return joint
    with torch.enable_grad():
        return _export_joint(module, args, kwargs, decompositions, note, inside=torch.no_grad)


def _records_gradients(metadata: ViewAndMutationMeta) -> bool:
    """Whether a computed result requires a gradient although gradients are off."""
    kinds = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
    return any(info.requires_grad and info.output_type in kinds for info in metadata.output_info)


def _export_joint(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    decompositions: Decompositions | None,
    note: Note,
    inside: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Joint:
    """``inside`` is the context that the module runs in while it is traced."""
    copies, dirty = ReshapeAliasMode(), DirtyArguments()

    def noted(result: Any, leaves: list[Any]) -> list[Any]:
        copies.returned(result, leaves)
        dirty.check(leaves)
        return note(result, leaves)

    with (
        contextlib.ExitStack() as stack,
        functorch_config.patch(_SUBCLASS_TANGENTS),
        inductor_config.patch(enable_auto_functionalized_v2=False),
        _plain_writes_of_export(),
        _aliases_named(),
        _seen_results(noted, inside),
        recorded_lines(entry="traced_model"),
        apply_fixes("aot_autograd", inputs=(args, kwargs)),
        RefusedOverlaps(),
        refused_gradient_writes(),
        dirty.watched(),
        copies,
    ):
        joint = aot_autograd.aot_export_joint_with_descriptors(stack, module, args, kwargs, decompositions=decompositions)
        state, capture = joint._aot_state, joint._aot_graph_capture
        mode = getattr(state, "fake_mode", None) or fake_mode_of(joint.graph_module.graph)  # torch 2.9 has no such attribute
        descriptors: Any = capture.updated_flat_args_descs
        subclasses = capture.maybe_subclass_meta
        if state.needs_autograd:
            descriptors = descriptors[0]
        name_backward(joint.graph_module.graph)
        _sum_by_twos(joint.graph_module)
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


def _sum_by_twos(graph_module: torch.fx.GraphModule) -> None:
    """Replace each n-ary sum (``torch.sym_sum``) by binary sums; torch traces some sums of two
    terms as n-ary ones.
    """
    graphs = [module.graph for module in graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    for graph in graphs:
        for node in graph.find_nodes(op="call_function", target=torch.sym_sum):
            total, *terms = node.args[0]
            for term in terms:
                values = [x.meta["val"] if isinstance(x, torch.fx.Node) else x for x in (total, term)]
                with graph.inserting_before(node):
                    total = graph.call_function(operator.add, (total, term))
                total.meta = {**node.meta, "val": values[0] + values[1]}
            node.replace_all_uses_with(total)
            graph.erase_node(node)


_BEFORE_STORAGE_SIZE = 13
"""Number of positional arguments of ``_make_wrapper_subclass`` between the class and the size of
the storage.
"""


@contextlib.contextmanager
def wrappers_with_room(inputs: Any) -> Iterator[None]:
    """Let ``as_strided_`` move an input within its storage while it is traced.

    The wrapper that AOTAutograd traces with has a storage as large as the tensor alone, and torch
    rejects any access beyond it. The run on fake tensors has already shown that the model stays
    within the real storage.
    """
    plain = [x for x in torch.utils._pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor) and not is_wrapper_subclass(x)]
    sizes = [(x.untyped_storage().nbytes(), x.numel() * x.element_size()) for x in plain if x.layout == torch.strided]
    room = [size for size, own in sizes if statically_known_true(size > own)]
    make: Callable[..., Any] = torch.Tensor._make_wrapper_subclass

    def roomy(cls: type, *described: Any, **named: Any) -> Any:
        if cls is not FunctionalTensor:
            return make(cls, *described, **named)
        # Each wrapper gets the sum of all sizes: with dynamic shapes it may not be known which of
        # two sizes is larger.
        reached("aot-wrappers-with-room")
        # From torch 2.15 on, one more positional argument describes the size of the storage. It is
        # the last one.
        return make(cls, *described[:_BEFORE_STORAGE_SIZE], sum(room), **named)

    with mock.patch.object(torch.Tensor, "_make_wrapper_subclass", roomy) if room else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def trained_lstms() -> Iterator[None]:
    """Keep LSTMs whose weights get gradients out of oneDNN's inference kernel, which saves nothing
    for a backward.

    torch selects that kernel whenever the input itself needs no gradient. For other LSTMs torch 2.9
    returns the last states with one dimension too many.
    """
    select: Callable[..., Any] = lstm_decompositions.select_one_layer_lstm_function
    layer: Callable[..., Any] = lstm_decompositions.one_layer_lstm

    def one_layer_lstm(given: torch.Tensor, hidden: Any, *rest: Any, **how: Any) -> Any:
        rows, last = layer(given, hidden, *rest, **how)
        return rows, tuple(
            state.squeeze(0) if state.dim() > first.dim() else state for state, first in zip(last, hidden, strict=True)
        )

    def chosen(given: torch.Tensor, hidden: Any, weights: Any) -> Any:
        trained = torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in torch.utils._pytree.tree_leaves((hidden, weights))
        )
        return lstm_decompositions.one_layer_lstm if trained else select(given, hidden, weights)

    with (
        patched("decomposition-lstm-of-inference", lstm_decompositions, "select_one_layer_lstm_function", chosen),
        replaced(lstm_decompositions, "one_layer_lstm", one_layer_lstm),
    ):
        yield


def multi_output_views() -> contextlib.AbstractContextManager[Any]:
    """Keep the outputs of multi-output views (``chunk``) views: AOTAutograd hides from autograd
    that they share memory.
    """
    return patched("aot-views-of-several-outputs", torch, "_functionalize_is_multi_output_view", lambda *given: False)


@contextlib.contextmanager
def _seen_results(note: Note, inside: Callable[[], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    """Call ``note`` with the results before they are flattened."""
    flattened: Callable[..., Any] = aot_autograd.create_tree_flattened_fn  # type: ignore[attr-defined]

    def noted(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        examples = torch.utils._pytree.tree_leaves(args)

        def traced_model(*a: Any, **k: Any) -> list[Any]:
            leaves, spec = torch.utils._pytree.tree_flatten((a, k))
            a, k = torch.utils._pytree.tree_unflatten(_with_true_bools(leaves, examples), spec)
            with inside():
                return note(function(*a, **k), torch.utils._pytree.tree_leaves((a, k)))

        return flattened(traced_model, *args, **kwargs)

    with mock.patch.object(aot_autograd, "create_tree_flattened_fn", noted):
        yield


def _with_true_bools(leaves: list[Any], examples: list[Any]) -> list[Any]:
    """Restore the bools among the leaves: AOTAutograd treats them as integers, so a model that
    returns one would return 1.
    """
    if len(leaves) != len(examples):
        return leaves
    return [example if isinstance(example, bool) else leaf for leaf, example in zip(leaves, examples, strict=True)]


def has_effect(target: Any) -> bool:
    """Whether an operator does more than return values: it writes to an argument, or is registered
    as effectful.
    """
    return isinstance(target, torch._ops.OpOverload) and (target._schema.is_mutable or is_effectful(target))


CALL_ON_COPIES = auto_functionalized
"""``CALL_ON_COPIES(op, **arguments)`` in a trace: a custom operator that mutates its arguments,
called on copies of them.

It returns what ``op`` returns (None if that is nothing), followed by the copies.
"""

_WRITES = "enable_auto_functionalized_v2_for_export"


def _plain_writes_of_export() -> contextlib.AbstractContextManager[Any]:
    """Disable the v2 of auto-functionalization while torch.export traces; torch 2.9 has neither
    this setting nor its module.
    """
    if importlib.util.find_spec("torch._export.config") is None:
        return contextlib.nullcontext()
    config: Any = importlib.import_module("torch._export.config")
    return config.patch({_WRITES: False}) if hasattr(config, _WRITES) else contextlib.nullcontext()


_GUESS = "disable_guess_zero_tangent_for_mutated_input_subclass"


_SUBCLASS_TANGENTS = {_GUESS: True} if hasattr(functorch_config, _GUESS) else {}
"""The tangent of a mutated subclass input has the subclass' type, and is no plain tensor of zeros:
the loader makes such zeros.
"""


class AliasedOutputsError(Exception):
    """Outputs (``positions``) share memory with each other beside tensor subclasses; AOTAutograd
    does not trace that.
    """

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
    """How many values the forward returns; a tensor subclass counts as its parts and its dynamic
    sizes.
    """
    if subclasses is None:
        return int(metadata.num_forward)
    counts = [getattr(meta, "arg_count", 1) for meta in metadata.subclass_fw_graph_out_meta]
    return sum(counts) + metadata.num_forward - metadata.num_forward_returns


Split = Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]]
"""A partitioner: takes the joint graph, its inputs or null, and ``num_fwd_outputs``; returns
forward and backward graphs.
"""


def partition(
    joint: Joint,
    *,
    partitioner: str,
    memory_budget: float | None,
    prepare: Callable[[torch.fx.GraphModule, Split], None],
    added: int = 0,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Split the joint graph into forward and backward.

    ``prepare`` is called first, with the joint graph and the partitioner. ``added``: number of
    forward outputs beyond AOTAutograd's.
    """
    static = list(range(joint.tokens + len(joint.primal_descriptors)))
    with within_budget(memory_budget), apply_fixes("partitioner", joint=joint.graph_module), joint.fake_mode:
        split: Split = default_partition if partitioner == "default" else min_cut_rematerialization_partition
        prepare(joint.graph_module, split)
        fix_graph("partitioner", joint.graph_module)
        keyword = {"num_fwd_outputs": joint.num_forward_outputs + added, "static_lifetime_input_indices": static}
        return split(joint.graph_module, None, **keyword)


def save_what_is_compared(module: torch.fx.GraphModule) -> None:
    """Make the partitioner save the values that the backward compares for equality, as the gradient
    of ``amax`` does.

    Compiled code may compute a value once vectorized and once as a scalar, and the last bits differ
    (torch 2.13). If the value is recomputed, no element equals the maximum, and ``torch.compile``
    gives no gradient at all.
    """
    for comparison in module.graph.find_nodes(op="call_function", target=torch.ops.aten.eq.Tensor):
        for operand in comparison.all_input_nodes:
            value = without_views(operand)
            if value.op == "call_function" and value.meta["val"].is_floating_point():
                reached("partitioner-compared-values")
                value.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def is_plain_call(target: Any) -> bool:
    """Whether a higher-order operator only calls its subgraph on its other arguments
    (``invoke_quant``).
    """
    return isinstance(target, BaseHOP)


def tell_calls_apart(region: torch.fx.GraphModule) -> None:
    """Renumber the calls of regions inside a region: torch gives all of them the number of the
    enclosing call.

    A forward call and its backward call take the same primals and get the same number.
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
    """Split each nested compile region of a joint graph with ``split``, and call its two halves
    instead.

    The forward half then returns the values that it saves after its results. Without the split, the
    backward would compute the forward again.
    """
    config = dataclasses.replace(get_dummy_aot_autograd_config(), partition_fn=split)
    known = inspect.signature(run_joint_graph_passes_on_hops).parameters  # releases before 2.12 read it from the config
    keyword = {"default_partition_fn": split} if "default_partition_fn" in known else {}
    run_joint_graph_passes_on_hops(module, [], config, **keyword)


def tree_children(spec: Any) -> list[Any]:
    """Children of a pytree spec: a method since torch 2.10, an attribute before."""
    children = getattr(spec, "children", None)
    return list(children()) if callable(children) else list(spec.children_specs)


def participates_in_backward(info: Any) -> bool:
    """Whether an output takes part in the backward; releases before 2.12 do not distinguish views
    made under ``no_grad``.
    """
    return bool(getattr(info, "requires_grad_for_backward", info.requires_grad))

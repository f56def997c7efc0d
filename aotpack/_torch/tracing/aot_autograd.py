"""Traces a model's joint graph with AOTAutograd, and partitions it into forward and backward
graphs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch._dynamo
import torch._inductor
import torch._inductor.lowering
from torch._export import config as export_config
from torch._functorch import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import descriptors as desc
from torch._functorch._aot_autograd.runtime_wrappers import AOTSyntheticBaseWrapper
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch._inductor import config as inductor_config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    ShapeEnv,
)

from ..api.backward_writers import Writer
from ..api.counting import count_call, require_calls
from ..api.graph_modules import lazy_graph_modules
from ..api.node_lines import name_backward, recorded_lines
from ..api.patching import hooked
from ..api.random_operators import is_effectful
from ..fixes.aot_autograd.overlaps import OverlapMutationMode
from ..fixes.aot_autograd.reshapes import ReshapeAliasMode
from ..fixes.aot_autograd.storage_changes import StorageChangeMode
from ..fixes.applying import apply_fixes
from ..refusals.dirty_arguments import DirtyArguments
from ..refusals.gradient_writes import refused_gradient_writes
from .dynamo import COMPARES, SIDE_EFFECTS
from .fake_run import VersionedWrites
from .joint_outputs import JointOutputs
from .selections import look_up_positions

Decompositions = dict[Any, Callable[..., Any]]
ObserveResults = Callable[[Any, list[Any]], list[Any]]
"""Takes what a module returned and the leaves of its arguments; returns the leaves that are traced
as outputs.
"""


@dataclasses.dataclass(frozen=True)
class Joint:
    """The joint graph of a model, or its forward graph alone if nothing needs a gradient.

    ``num_forward``: how many of the graph's outputs belong to the forward. ``gradient_metas``:
    AOTAutograd's description of the gradients that are tensor subclasses. It is None if there is no
    subclass. ``sparse``: maps the index of each result that is made sparse after the graph to its
    number of sparse dimensions. ``sparse_gradients``: the indices of gradients of which the graph
    returns the values of a sparse tensor; its indices follow the gradients, in this order.
    ``tangent_writes``: the indices of tangents that the backward writes to; the graph returns their
    new values after all gradients, in this order. ``state_writes``: the buffers that the backward
    writes to. The graph takes their values at the time of the backward after the tangents, and
    returns their new values last, in this order. ``written_in_backward``: what was seen of such
    writes, by primal.
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
    sparse_gradients: tuple[int, ...] = ()
    tangent_writes: tuple[int, ...] = ()
    state_writes: Mapping[int, list[Writer]] = dataclasses.field(default_factory=dict)
    written_in_backward: Mapping[int, list[Writer]] = dataclasses.field(default_factory=dict)

    @property
    def outputs(self) -> JointOutputs:
        """Where values are among the graph's outputs."""
        metas, metadata = self.gradient_metas, self.metadata
        return JointOutputs(
            tokens=self.tokens,
            mutated=int(metadata.num_mutated_inp_runtime_indices),
            results=len(metadata.output_info),
            forward=self.num_forward,
            gradients=len(self.primal_descriptors) if metas is None else sum(getattr(m, "arg_count", 1) for m in metas),
            sparse=len(self.sparse_gradients),
            written=len(self.tangent_writes),
            state=len(self.state_writes),
        )

    def touches(self, descriptor: desc.AOTInput) -> bool | None:
        """Whether running the model moves the version counter of an input; None if that is not
        known.
        """
        if self.touched is None:
            return None
        if isinstance(descriptor, desc.PlainAOTInput):
            return descriptor.idx in self.touched.leaves
        return getattr(descriptor, "target", None) in self.touched.names


def export_joint(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    decompositions: Decompositions | None = None,
    *,
    observe: ObserveResults,
) -> Joint:
    """Trace the joint graph through AOTAutograd (``aot_export_joint_with_descriptors``).

    All mutations are functionalised out of the graphs; the loader applies them. ``observe`` receives
    what the module returns and the leaves of its arguments, parameters included. A module that
    enables gradients while they are off is traced a second time, with its gradients.
    """
    joint = _export_joint(module, args, kwargs, decompositions, observe)
    if torch.is_grad_enabled() or not _records_gradients(joint.metadata):
        return joint
    with torch.enable_grad():
        return _export_joint(module, args, kwargs, decompositions, observe, inside=torch.no_grad)


def _records_gradients(metadata: ViewAndMutationMeta) -> bool:
    """Whether a computed result requires a gradient although gradients are off."""
    kinds = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
    return any(info.requires_grad and info.output_type in kinds for info in metadata.output_info)


def _export_joint(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    decompositions: Decompositions | None,
    observe: ObserveResults,
    inside: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Joint:
    """``inside`` is the context that the module runs in while it is traced."""
    copies, dirty, changes = ReshapeAliasMode(), DirtyArguments(), StorageChangeMode()

    def observed(result: Any, leaves: list[Any]) -> list[Any]:
        copies.returned(result, leaves)
        dirty.check(leaves)
        changes.returned(result)
        return observe(result, leaves)

    with (
        contextlib.ExitStack() as stack,
        functorch_config.patch(disable_guess_zero_tangent_for_mutated_input_subclass=True),  # the loader makes zeros of its type
        inductor_config.patch(enable_auto_functionalized_v2=False),
        export_config.patch(enable_auto_functionalized_v2_for_export=False),
        _aliases_named(),
        _observed_results(observed, inside),
        recorded_lines(entry="traced_model"),
        changes,
        apply_fixes("aot_autograd", inputs=(args, kwargs)),
        OverlapMutationMode(),
        refused_gradient_writes() as writers,
        dirty.watched(),
        require_calls("aot-export"),
        lazy_graph_modules(),
        copies,
    ):
        joint = aot_autograd.aot_export_joint_with_descriptors(stack, module, args, kwargs, decompositions=decompositions)
        state, capture = joint._aot_state, joint._aot_graph_capture
        mode = state.fake_mode
        descriptors: Any = capture.updated_flat_args_descs
        subclasses = capture.maybe_subclass_meta
        if state.needs_autograd:
            descriptors = descriptors[0]
        name_backward(joint.graph_module.graph)
        _replace_nary_sums(joint.graph_module)
        look_up_positions(joint.graph_module, mode)
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
            written_in_backward=writers.found,
        )


def _replace_nary_sums(graph_module: torch.fx.GraphModule) -> None:
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


@contextlib.contextmanager
def _observed_results(observe: ObserveResults, inside: Callable[[], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    """Call ``observe`` with the results before they are flattened."""
    flattened: Callable[..., Any] = aot_autograd.create_tree_flattened_fn  # type: ignore[attr-defined]

    def observed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        count_call("aot-export")
        examples = torch.utils._pytree.tree_leaves(args)

        def traced_model(*a: Any, **k: Any) -> list[Any]:
            leaves, spec = torch.utils._pytree.tree_flatten((a, k))
            a, k = torch.utils._pytree.tree_unflatten(_with_true_bools(leaves, examples), spec)
            with inside():
                return observe(function(*a, **k), torch.utils._pytree.tree_leaves((a, k)))

        return flattened(traced_model, *args, **kwargs)

    with hooked("aot-export", aot_autograd, "create_tree_flattened_fn", observed):
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


class AliasedOutputsError(Exception):
    """Outputs (``positions``) share memory with each other beside tensor subclasses; AOTAutograd
    does not trace that.
    """

    def __init__(self, positions: list[int]) -> None:
        super().__init__("results share memory with each other")
        self.positions = positions
        self.paths = [f"result {position}" for position in positions]


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


def tree_children(spec: Any) -> list[Any]:
    """Children of a pytree spec: a method since torch 2.10, an attribute before."""
    children = getattr(spec, "children", None)
    return list(children()) if callable(children) else list(spec.children_specs)


def with_sizes(spec: Any, original: Any) -> Any:
    """A pytree spec in which tuples are a ``torch.Size`` where they are one in ``original``."""
    children, others = tree_children(spec), tree_children(original)
    if spec.is_leaf() or len(children) != len(others):
        return spec
    kind = torch.Size if (spec.type, original.type) == (tuple, torch.Size) else spec.type
    return type(spec)(kind, spec.context, list(map(with_sizes, children, others)))


def participates_in_backward(info: Any) -> bool:
    """Whether an output takes part in the backward; releases before 2.12 do not distinguish views
    made under ``no_grad``.
    """
    return bool(getattr(info, "requires_grad_for_backward", info.requires_grad))

"""Traces a model to a joint graph with the first front end that accepts it.

A front end turns the user's Python into something that AOTAutograd can trace. Dynamo comes first
because it keeps activation checkpoints and the caller's argument order. Non-strict
``torch.export`` and direct tracing accept models that Dynamo rejects. They keep activation
checkpoints with the help of :mod:`.._torch.api.checkpoint`.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader.errors import AotpackError, CaptureError, Problem, UnsupportedError

from .._torch.api import checkpoint as checkpoints
from .._torch.api import fake_tensors, messages
from .._torch.api.asserted import AssertedArguments
from .._torch.api.averages import traced_averages
from .._torch.api.causal_masks import unknown_masks_kept
from .._torch.api.diagonals import DiagonalFills
from .._torch.api.distributions import asserted_distributions
from .._torch.api.encoders import padding_made_zero
from .._torch.api.factories import VaryingFactories
from .._torch.api.inference import traced_inference
from .._torch.api.moves import unmoved_modules
from .._torch.api.packed import packed_sequences
from .._torch.api.random_operators import draws_in_subgraphs
from .._torch.api.scalar_indices import ScalarIndices
from .._torch.api.shape_env import fixed_sources, recorded_guards
from .._torch.api.size_texts import texts_of_numbers
from .._torch.tracing import aot_autograd, fake_run
from .._torch.tracing.decompose import decomposed_as_eager
from .._torch.tracing.eager_kernels import kept_above_autograd
from .._torch.tracing.randomness import traced_random
from .._torch.tracing.state_assignments import SideEffectError
from ..graph import source_line
from . import direct, dynamo, export
from .backward_writes import without_writes
from .dry_run import repeat
from .dry_run.branches import Branch, follow, observe
from .dry_run.checks import kept_checks
from .dry_run.eager import explained
from .final_refusals import final_refusal
from .front_end_input import FrontEndInput
from .inputs.dynamic_shapes import DynamicShapes
from .inputs.examples import BUILD_DEVICES
from .modes import mode, modes
from .reasons import BRANCH, COUNT, NUMBER, Reason, by_use, merged, reason
from .regions import as_regions, recomputes_regions, repeated_layers
from .returned import Returned
from .sparse_gradients import with_parts_of_gradients
from .sparse_results import with_dense_results

FRONT_ENDS = ("dynamo", "export", "trace")


@dataclass(frozen=True)
class Captured:
    """A traced method.

    ``front_end`` made the joint graph, and ``rejected`` has the reasons of others that were tried.
    ``lost_checkpoints`` are the user's lines whose checkpoints the graph does not recompute.
    ``branches`` are the Python branches that were taken as on the example inputs. ``regions`` are
    how many layers are nested compile regions, and ``regions_refused`` says why none are.
    """

    joint: aot_autograd.Joint
    returned: Returned
    front_end: str
    rejected: tuple[Problem, ...] = field(default=())
    lost_checkpoints: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()
    regions: int = 0
    regions_refused: str = ""


def capture(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: DynamicShapes,
    *,
    training: bool,
    grad: bool,
    decompositions: aot_autograd.Decompositions | None = None,
    exact_random: bool = False,
    front_ends: Sequence[str] = FRONT_ENDS,
    follow_example: bool = False,
    regional: bool | None = False,
) -> Captured:
    """Trace ``model`` in one mode with the first front end that accepts it.

    If each one that accepts it makes a size constant that should vary, the first one's trace counts.

    The model does not run on real data unless all front ends refuse it. Then eager runs find out
    whether the model itself fails, and whether ``follow_example`` would help. The model's mode is
    restored. ``exact_random`` keeps every random draw.

    With ``follow_example``, the model runs once on copies of the example inputs if Dynamo refuses
    it. The other front ends then follow the Python branches of that run
    (:mod:`.dry_run.branches`).

    Unless ``regional`` is false, Dynamo first traces the model with its repeated layers as nested
    compile regions (:mod:`.regions`).

    Raises:
        CaptureError: every front end refused the model. The message has the reason of each.
        SetsRequiresGradError: the model must be traced again with arguments that require
            gradients.
    """
    source = FrontEndInput(model, args, kwargs, shapes, decompositions, training, grad, exact_random)
    regions_refused = ""
    found: Captured | None = None
    if regional is not False:
        try:
            found = _attempt_with_regions(source, front_ends)
            if not _fixes_sizes(source, found):
                return found
        except _NoRegionsError as error:
            regions_refused = str(error)
    refused: list[Reason] = []
    cause: Exception | None = None
    observed: list[Branch] | None = None
    for name in front_ends:
        try:
            if follow_example and name != "dynamo" and observed is None:
                with modes(source):
                    observed = observe(model, args, kwargs)
            captured = _attempt(replace(source, returned=Returned()), name, observed or [])
        except Exception as error:  # a front end may raise any error, which is reported if no other succeeds
            if found is None and isinstance(error, (AotpackError, fake_run.SetsRequiresGradError)):
                raise
            if found is None and (refusal := final_refusal(source, name, error)) is not None:
                raise refusal from error
            refused.append(reason(name, error))
            cause = cause or error
        else:
            captured = replace(captured, regions_refused=regions_refused)
            if not _fixes_sizes(source, captured):
                found = captured
                break
            found = found or captured
    if found is not None:
        return replace(found, rejected=tuple(each.problem for each in merged(refused)))
    raise _refused_by_all(source, by_use(merged(refused)), cause, front_ends, follow_example=follow_example)


def _fixes_sizes(source: FrontEndInput, captured: Captured) -> bool:
    """Whether the trace made a size constant that a ``Dim`` names. Another front end may keep it."""
    named = any(not size.automatic for items in source.shapes.related().values() for _, _, size in items)
    return named and bool(fixed_sources(captured.joint.fake_mode))


def _attempt(source: FrontEndInput, front_end: str, observed: Sequence[Branch]) -> Captured:
    """Trace with one front end, which follows the ``observed`` branches."""
    with (
        _traced(source.model, training=source.training, exact_random=source.exact_random),
        torch.set_grad_enabled(source.grad),
        decomposed_as_eager(),
        kept_above_autograd(source.decompositions or {}),
    ):
        if source.shapes.integers and front_end != "trace":
            raise ValueError("an integer argument varies, which this front end does not take")
        followed = follow(source.model, observed, of_numbers=front_end == "trace") if observed else []
        joint, lost = _FRONT_ENDS[front_end](source)
        _check_constants(joint)
        joint = without_writes(with_parts_of_gradients(with_dense_results(joint)))
        _check_layouts(joint)
        _check_devices(joint)
    return Captured(joint, source.returned, front_end, lost_checkpoints=lost, branches=tuple(followed))


class _NoRegionsError(Exception):
    """The model cannot be traced with its repeated layers as regions."""


def _attempt_with_regions(source: FrontEndInput, front_ends: Sequence[str]) -> Captured:
    if "dynamo" not in front_ends:
        raise _NoRegionsError("only the dynamo front end has regions")
    layers = repeated_layers(source.model)
    if not layers:
        raise _NoRegionsError("no ModuleList or Sequential has several layers of one class, with submodules and equal sizes")
    try:
        with as_regions(layers):
            captured = _attempt(replace(source, returned=Returned()), "dynamo", [])
    except fake_run.SetsRequiresGradError:
        raise
    except Exception as error:  # any error may be one of regions; without them it is raised again, or there is none
        raise _NoRegionsError(reason("dynamo", error).problem.message) from error
    if source.exact_random and draws_in_subgraphs(captured.joint.graph_module):
        raise _NoRegionsError('the layers draw random numbers, which rng="eager" allows only outside of regions')
    if recomputes_regions(captured.joint.graph_module):
        raise _NoRegionsError("a checkpoint around layers would recompute all of them before the first one's gradient")
    return replace(captured, regions=len(layers))


def depends_on_gradients(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], branches: Sequence[Branch], *, training: bool
) -> bool:
    """Whether the model does something else if the caller has turned gradients off.

    True if this cannot be known.

    ``branches`` are the branches that were followed while the model was traced.
    """
    with as_traced(model, branches, training=training):
        try:
            return repeat.depends_on_gradients(model, args, kwargs)
        except Exception:  # it was traced but fails on fake tensors: then it serves no calls without gradients
            return True


@contextlib.contextmanager
def as_traced(model: torch.nn.Module, branches: Sequence[Branch], *, training: bool) -> Iterator[None]:
    """Restore the state of tracing inside the block: the model's mode, torch's changes, and the followed ``branches``."""
    with _traced(model, training=training, exact_random=False):
        if branches:
            follow(model, branches)
        with kept_checks():
            yield


@contextlib.contextmanager
def _traced(model: torch.nn.Module, *, training: bool, exact_random: bool) -> Iterator[None]:
    """Put the model into its mode inside the block, and apply the changes to torch that tracing needs."""
    with (
        mode(model, training),
        messages.own_warnings(),
        messages.quiet_torch_logs(),
        recorded_guards(),
        checkpoints.torch_xla_checkpoints(),
        traced_random(exact=exact_random),
        AssertedArguments(),
        ScalarIndices(),
        VaryingFactories(),
        texts_of_numbers(),
        DiagonalFills(),
        asserted_distributions(),
        unknown_masks_kept(),
        unmoved_modules(),
        traced_averages(),
        padding_made_zero(),
        traced_inference(),
        packed_sequences(),
    ):
        yield


def _refused_by_all(
    source: FrontEndInput, reasons: Sequence[Reason], cause: Exception | None, front_ends: Sequence[str], *, follow_example: bool
) -> CaptureError:
    """Return the error that no front end traced the model. ``cause`` is the first front end's error.

    Eager runs find out whether the model itself fails, and another trace whether following the
    branches of the example would help.
    """
    of_values = any(each.ours in (BRANCH, COUNT, NUMBER) for each in reasons)
    follows = not follow_example and of_values and _can_follow(source, front_ends)
    refusal = _no_front_end(reasons, training=source.training, follows=follows)
    refusal.__cause__ = cause
    with modes(source):
        return explained(source.model, source.args, source.kwargs, refusal)


def _can_follow(source: FrontEndInput, front_ends: Sequence[str]) -> bool:
    """Whether the model can be traced if its branches are followed as on the example inputs."""
    try:
        capture(
            source.model,
            source.args,
            source.kwargs,
            source.shapes,
            training=source.training,
            grad=source.grad,
            decompositions=source.decompositions,
            front_ends=[name for name in front_ends if name != "dynamo"],
            follow_example=True,
        )
    except Exception:  # a front end may raise any error; only the earlier reasons are reported
        return False
    return True


def _no_front_end(refused: Sequence[Reason], *, training: bool, follows: bool) -> CaptureError:
    """Return the error that no front end traced the model.

    ``follows`` says whether it could be traced with ``branches="example"``.
    """
    hints = [_SEVERAL_REASONS] if len(refused) > 1 else []
    if any(each.is_whole_number for each in refused):
        hints.append(_WHOLE_HINT)
    if follows:
        hints.append(_BRANCH_HINT)
    elif any(each.ours == COUNT for each in refused):
        hints.append(_COUNT_HINT)
    elif any(each.ours == NUMBER for each in refused):
        hints.append(_NUMBER_HINT)
    elif any(each.ours == BRANCH for each in refused):
        hints.append(_TENSOR_HINT)
    summary = f"No front end could trace the model in {'train' if training else 'eval'} mode."
    return CaptureError(summary, [each.problem for each in refused], hint=" ".join(hints))


_SEVERAL_REASONS = "Each line names front ends and the reason why they failed. Start with the first."
_BRANCH_HINT = (
    'To trace only the branches that the example inputs take, build with branches="example". '
    "A call that takes another branch then raises an error."
)
_WHOLE_HINT = (
    "range() of a tensor needs its value. int() and tensor.item() do not, and sizes may be computed from them: "
    "torch.zeros(index.max().item() + 1)."
)
_NUMBER_HINT = (
    "A trace has no value for float() of a tensor or for functions of math: compute with the tensor instead. "
    'With branches="example", a model may compare the result of item(), and read integers with int().'
)
_COUNT_HINT = "Compute with all rows, and use torch.where or a product with the mask in place of selecting some."
_TENSOR_HINT = "Use torch.where, or torch.cond, in place of the branch."


def _check_constants(joint: aot_autograd.Joint) -> None:
    """Check that the tensors that a graph closes over have values.

    A front end that lost values did not trace the model.
    """
    for node in joint.graph_module.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(str(node.target))(joint.graph_module)
        if isinstance(value, torch.Tensor) and fake_tensors.real_tensor(value) is None:
            raise SideEffectError(f"{source_line(node) or node.target}: the front end lost the value of a tensor while tracing")


def _check_layouts(joint: aot_autograd.Joint) -> None:
    """Check that all values of a graph are strided tensors.

    Raises:
        UnsupportedError: names the lines that make other tensors, in the forward or in a gradient.
    """
    problems: dict[str, str] = {}
    for node, value in _values(joint):
        if value.layout != torch.strided:
            problems.setdefault(source_line(node) or node.name, f"{node.target} makes a tensor of layout {value.layout}")
    if problems:
        raise UnsupportedError(
            "The model or its gradient creates sparse tensors. "
            "A bundle supports them as results without a gradient, and as gradients of embeddings.",
            [Problem(where, message) for where, message in problems.items()],
            hint="Use dense ones (to_dense(), Embedding(sparse=False)).",
        )


def _check_devices(joint: aot_autograd.Joint) -> None:
    """Check that a graph computes on one device.

    Raises:
        UnsupportedError: names the lines that make tensors on other devices.
    """
    problems: dict[str, str] = {}
    for node, value in _values(joint):
        if value.device.type not in BUILD_DEVICES:
            problems.setdefault(source_line(node) or node.name, f"makes a tensor on {value.device}")
    if problems:
        raise UnsupportedError(
            "The model uses another device than its arguments. A bundle computes on one device, which its loader chooses.",
            [Problem(where, message) for where, message in problems.items()],
            hint="Use the device of an argument (x.device) in place of a fixed one.",
        )


def _values(joint: aot_autograd.Joint) -> Iterator[tuple[torch.fx.Node, torch.Tensor]]:
    """The tensors that a graph computes, with the nodes that make them."""
    for node in joint.graph_module.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor):
                yield node, value


_FRONT_ENDS = {"dynamo": dynamo.traced, "export": export.traced, "trace": direct.traced}

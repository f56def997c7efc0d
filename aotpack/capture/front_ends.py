"""Model to joint graph: the front ends, in one order of preference.

A front end turns the user's Python into something AOTAutograd can trace. Dynamo comes first because it keeps
activation checkpoints and the caller's argument order; non-strict ``torch.export`` and direct tracing take
models that Dynamo rejects, and keep checkpoints with our help (:mod:`.._torch.checkpoint`).
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader.errors import AotpackError, CaptureError, Problem, UnsupportedError

from .. import _torch as compat
from .._torch import checkpoint as checkpoints
from .._torch.asserted import AssertedArguments
from .._torch.averages import traced_averages
from .._torch.decompose import decomposed_as_eager
from .._torch.moves import unmoved_modules
from .._torch.randomness import traced_random
from .._torch.recurrent import PackedSequenceError, refused_packing
from ..graph import source_line
from . import direct, dynamo, export
from .dry_run import repeat
from .dry_run.branches import Branch, follow, observe
from .dry_run.eager import explained
from .front_end_input import FrontEndInput, has_modes
from .inputs.dynamic_shapes import DynamicShapes
from .reasons import BRANCH, NUMBER, Reason, by_use, line_of, merged, reason
from .returned import Returned
from .sparse import with_dense_results

FRONT_ENDS = ("dynamo", "export", "trace")


@dataclass(frozen=True)
class Captured:
    """A traced method: the joint graph, how it was got, the user's lines whose checkpoints it does not recompute, and the Python
    branches that were taken as on the example inputs.
    """

    joint: compat.Joint
    returned: Returned
    front_end: str
    rejected: tuple[Problem, ...] = field(default=())
    lost_checkpoints: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()


def capture(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: DynamicShapes,
    *,
    training: bool,
    grad: bool,
    decompositions: compat.Decompositions | None = None,
    exact_random: bool = False,
    front_ends: Sequence[str] = FRONT_ENDS,
    follow_example: bool = False,
) -> Captured:
    """Trace ``model`` in one mode with the first front end that takes it.

    Nothing of the model is run on real data, unless all front ends refuse it: then runs in eager tell whether the model fails
    by itself, and whether ``follow_example`` would help. The model's mode is restored. ``exact_random`` keeps every draw. With
    ``follow_example`` the model is run once if Dynamo does not take it as it is, and the other front ends follow the way that
    its Python branches go (:mod:`.branches`).

    Raises:
        CaptureError: every front end refused; the message has the reason of each.
        SetsRequiresGradError: to be traced with arguments that require gradients.
    """
    refused: list[Reason] = []
    cause: Exception | None = None
    observed: list[Branch] | None = None
    for name in front_ends:
        returned = Returned()
        try:
            if follow_example and name != "dynamo" and observed is None:
                with _mode(model, training), torch.set_grad_enabled(grad):
                    observed = observe(model, args, kwargs)
            with (
                _traced(model, training=training, exact_random=exact_random),
                torch.set_grad_enabled(grad),
                decomposed_as_eager(),
            ):
                if shapes.integers and name != "trace":
                    raise ValueError("an integer argument varies, which this front end does not take")
                followed = follow(model, observed, of_numbers=name == "trace") if observed else []
                joint, lost = _FRONT_ENDS[name](FrontEndInput(model, args, kwargs, shapes, decompositions, returned))
                _check_constants(joint)
                _refuse_writes_in_backward(joint)
                joint = with_dense_results(joint)
                _check_layouts(joint)
        except (AotpackError, compat.SetsRequiresGradError):
            raise
        except compat.AliasedOutputsError as error:
            raise _refused_aliases(error) from error
        except compat.OverlapError as error:
            with _mode(model, training), torch.set_grad_enabled(grad):
                raise _refused_overlap(model, args, kwargs, error) from error
        except compat.GradientWriteError as error:
            raise _refused_gradient_write(error) from error
        except compat.DirtyArgumentError as error:
            raise _refused_dirty_argument(error) from error
        except PackedSequenceError as error:
            raise _refused_packing(error) from error
        except Exception as error:  # a front end may raise anything; the reason is kept and shown
            refused.append(reason(name, error))
            cause = cause or error
            continue
        rejected = tuple(each.problem for each in merged(refused))
        return Captured(joint, returned, name, rejected, lost, tuple(followed))
    reasons = by_use(merged(refused))
    follows = not follow_example and any(each.ours in (BRANCH, NUMBER) for each in reasons)
    if follows:
        ends = [name for name in front_ends if name != "dynamo"]
        follows = _can_follow(
            functools.partial(capture, model, args, kwargs, shapes, training=training, grad=grad, front_ends=ends),
            decompositions,
        )
    refusal = _no_front_end(reasons, training=training, follows=follows)
    refusal.__cause__ = cause
    with _mode(model, training), torch.set_grad_enabled(grad):
        raise explained(model, args, kwargs, refusal)


def depends_on_gradients(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], branches: Sequence[Branch], *, training: bool
) -> bool:
    """Whether the model does something else where the caller has turned gradients off; also where that cannot be told.

    ``branches``: what was taken for given while it was traced.
    """
    with as_traced(model, branches, training=training):
        try:
            return repeat.depends_on_gradients(model, args, kwargs)
        except Exception:  # traced, but not to be run on fake tensors: then it serves no calls without gradients
            return True


@contextlib.contextmanager
def as_traced(model: torch.nn.Module, branches: Sequence[Branch], *, training: bool) -> Iterator[None]:
    """The model as it was while it was traced: in that mode, and going the way that ``branches`` were taken."""
    with _traced(model, training=training, exact_random=False):
        if branches:
            follow(model, branches)
        yield


@contextlib.contextmanager
def _traced(model: torch.nn.Module, *, training: bool, exact_random: bool) -> Iterator[None]:
    """The model in its mode, and what of torch is traced otherwise than it would be."""
    with (
        _mode(model, training),
        compat.own_warnings(),
        compat.quiet_torch_logs(),
        checkpoints.torch_xla_checkpoints(),
        traced_random(exact=exact_random),
        AssertedArguments(),
        unmoved_modules(),
        traced_averages(),
        refused_packing(),
    ):
        yield


def _can_follow(capture_again: Callable[..., Captured], decompositions: compat.Decompositions | None) -> bool:
    """Whether the model can be traced where its branches go the way that they go on the example inputs."""
    try:
        capture_again(decompositions=decompositions, follow_example=True)
    except Exception:  # a front end may raise anything; the reasons without it are shown
        return False
    return True


def _no_front_end(refused: Sequence[Reason], *, training: bool, follows: bool) -> CaptureError:
    """``follows``: whether the model could be traced with ``branches="example"``."""
    hints = [_SEVERAL_REASONS] if len(refused) > 1 else []
    if follows:
        hints.append(_BRANCH_HINT)
    elif any(each.ours == NUMBER for each in refused):
        hints.append(_NUMBER_HINT)
    elif any(each.ours == BRANCH for each in refused):
        hints.append(_TENSOR_HINT)
    summary = f"No front end could trace the model in {'train' if training else 'eval'} mode."
    return CaptureError(summary, [each.problem for each in refused], hint=" ".join(hints))


_SEVERAL_REASONS = "Each line is the reason of the front ends that it names. Start with the first."
_BRANCH_HINT = (
    'To take each branch as it goes on the example inputs, build with branches="example". '
    "A call on which a branch goes another way is then an error."
)
_NUMBER_HINT = (
    "A trace does not have the fractions that float() and functions of math take off a tensor: compute with the tensor. "
    'With branches="example" a model may compare what item() gives, and read whole numbers with int().'
)
_TENSOR_HINT = "Use torch.where, or torch.cond, in place of the branch."


def _refused_aliases(error: compat.AliasedOutputsError) -> UnsupportedError:
    return UnsupportedError(
        "The model has tensor subclasses, and returns tensors that share memory with each other, which torch cannot trace.",
        [Problem(where, "is a view of another result") for where in error.places],
        hint="Return copies (clone()), or one of them and take the views outside.",
    )


def _refused_overlap(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], error: compat.OverlapError
) -> UnsupportedError:
    where = line_of(error)
    if not where:  # what Dynamo captured has no lines of the user's: the model itself has
        with contextlib.suppress(Exception):  # on fake tensors it may fail elsewhere, earlier
            try:
                compat.run_on_fake_tensors(compat.fake_mode_with_shapes(), model, args, kwargs)
            except compat.OverlapError as found:
                where = line_of(found)
    return UnsupportedError(
        "The model writes to memory that the same call meets again: eager raises, or goes by the order of its loops.",
        [Problem(where or "the model", str(error))],
        hint="Write to a copy (clone()), or to the tensor it is a view of.",
    )


def _refused_gradient_write(error: compat.GradientWriteError) -> UnsupportedError:
    where = error.place if error.node is None else source_line(error.node)
    return UnsupportedError(
        "The model has an autograd.Function whose backward writes to a gradient that others have, too.",
        [Problem(where or "the model", str(error))],
        hint="Write to grad_output.clone(), or compute a new tensor: autograd says never to change grad_output in place.",
    )


def _refused_dirty_argument(error: compat.DirtyArgumentError) -> UnsupportedError:
    return UnsupportedError(
        "The model has an autograd.Function that writes to an argument of the model.",
        [Problem(error.place or "the model", str(error))],
        hint="Give the function a copy (x.clone()), or return a new tensor from its forward.",
    )


def _refuse_writes_in_backward(joint: compat.Joint) -> None:
    """Refuse an ``autograd.Function`` whose backward writes to a tensor that the call was given: gradients come from pure graphs.

    Raises:
        UnsupportedError: names the line of each write.
    """
    writes = joint.graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    written = [node.args[1] for node in writes if node.args[0].op == "placeholder"]
    if not written:
        return
    message = "a custom backward writes in place to an argument, parameter or buffer that its forward saved"
    lines = dict.fromkeys(source_line(value) or "the model" for value in written)
    raise UnsupportedError(
        "The model has an autograd.Function whose backward writes to a tensor that the call was given.",
        [Problem(line, message) for line in lines],
        hint="Write to a copy (x = ctx.saved_tensors[0].clone()). What should outlive the step is written in forward.",
    )


def _refused_packing(error: PackedSequenceError) -> UnsupportedError:
    return UnsupportedError(
        "The model has a recurrent layer run over packed sequences, whose sizes depend on data.",
        [Problem(line_of(error) or "the model", str(error))],
        hint="Give the layer padded sequences. In the forward direction its results up to a sequence's end are the same; "
        "mask those behind it, and take the last state from the results at the end.",
    )


def _check_constants(joint: compat.Joint) -> None:
    """Tensors a graph closes over must be real ones: a front end that lost their values has not traced the model."""
    for node in joint.graph_module.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(str(node.target))(joint.graph_module)
        if isinstance(value, torch.Tensor) and compat.real_tensor(value) is None:
            raise compat.SideEffectError(f"{source_line(node) or node.target}: the value of a tensor was lost while tracing")


def _check_layouts(joint: compat.Joint) -> None:
    """A graph's values lie in memory by strides.

    Raises:
        UnsupportedError: names the lines that make others, in the forward or for a gradient.
    """
    made = [
        (node, value)
        for node in joint.graph_module.graph.nodes
        for value in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(value, torch.Tensor) and value.layout != torch.strided
    ]
    problems: dict[str, str] = {}
    for node, value in made:
        problems.setdefault(source_line(node) or node.name, f"{node.target} makes a tensor of layout {value.layout}")
    if problems:
        raise UnsupportedError(
            "The model or its gradient makes sparse tensors; a bundle takes them only as results that carry no gradient.",
            [Problem(where, message) for where, message in problems.items()],
            hint="Use dense ones (to_dense(), Embedding(sparse=False)).",
        )


@contextlib.contextmanager
def _mode(model: torch.nn.Module, training: bool) -> Iterator[None]:
    # A trace must not leave its fake tensors in the user's model (torch's own reparametrization does, where one submodule has two
    # names), nor what a first call sets up.
    with repeat.unchanged(model), _unvalidated_distributions():
        if model.training != training and has_modes(model):
            model.train(training)
        yield


@contextlib.contextmanager
def _unvalidated_distributions() -> Iterator[None]:
    """``torch.distributions`` checks its arguments by their values: like ``torch.compile``, a build leaves these checks out."""
    before: bool = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


_FRONT_ENDS = {"dynamo": dynamo.traced, "export": export.traced, "trace": direct.traced}

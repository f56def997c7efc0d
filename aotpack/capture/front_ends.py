"""Model to joint graph: the front ends, in one order of preference.

A front end turns the user's Python into something AOTAutograd can trace. Dynamo comes first because it keeps
activation checkpoints and the caller's argument order; non-strict ``torch.export`` and direct tracing take
models that Dynamo rejects, and keep checkpoints with our help (:mod:`.._torch_compat.checkpoint`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader.errors import AotpackError, CaptureError, Problem, UnsupportedError

from .. import _torch_compat as compat
from .._torch_compat import checkpoint as checkpoints
from .._torch_compat.decompose import resized_as_eager
from .._torch_compat.randomness import no_python_random, traced_random
from ..graph import source_line, views
from . import places, rehearsals
from .branches import Branch, follow, observe
from .dynamic_shapes import DynamicShapes
from .examples import spelled_out
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


class FunctionModule(torch.nn.Module):
    """A plain function as a module without state."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


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

    Nothing of the model is run on real data, and the model's mode is restored. ``exact_random`` keeps every draw. With
    ``follow_example`` the model is run once if Dynamo does not take it as it is, and the other front ends follow the way that
    its Python branches go (:mod:`.branches`).

    Raises:
        CaptureError: every front end refused; the message has the reason of each.
    """
    rejected: list[Problem] = []
    cause: Exception | None = None
    observed: list[Branch] | None = None
    for name in front_ends:
        returned = Returned()
        try:
            if follow_example and name != "dynamo" and observed is None:
                with _mode(model, training), torch.set_grad_enabled(grad):
                    observed = observe(model, args, kwargs)
            with (
                _mode(model, training),
                torch.set_grad_enabled(grad),
                compat.unguarded_convolutions(),
                resized_as_eager(),
                compat.own_warnings(),
                checkpoints.torch_xla_checkpoints(),
                traced_random(exact=exact_random),
            ):
                if shapes.integers and name != "trace":
                    raise ValueError("an integer argument varies, which this front end does not take")
                followed = follow(model, observed) if observed else []
                joint, lost = _FRONT_ENDS[name](model, args, kwargs, shapes, decompositions, returned)
                _check_constants(joint)
                joint = with_dense_results(joint)
                _check_layouts(joint)
        except AotpackError:
            raise
        except compat.AliasedOutputsError as error:
            raise _refused_aliases(error) from error
        except compat.OverlapError as error:
            with _mode(model, training), torch.set_grad_enabled(grad):
                raise _refused_overlap(model, args, kwargs, error) from error
        except Exception as error:  # a front end may raise anything; the reason is kept and shown
            rejected.append(Problem(name, explain(error)))
            cause = cause or error
            continue
        return Captured(joint, returned, name, tuple(rejected), lost, tuple(followed))
    raise CaptureError(
        f"No front end could trace the model in {'train' if training else 'eval'} mode.",
        rejected,
        hint=_HINT + (_BRANCH_HINT if not follow_example and any(_BRANCHES in p.message for p in rejected) else ""),
    ) from cause


def depends_on_gradients(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], branches: Sequence[Branch], *, training: bool
) -> bool:
    """Whether the model does something else where the caller has turned gradients off; also where that cannot be told.

    ``branches``: what was taken for given while it was traced.
    """
    with as_traced(model, branches, training=training):
        try:
            return rehearsals.depends_on_gradients(model, args, kwargs)
        except Exception:  # traced, but not to be run on fake tensors: then it serves no calls without gradients
            return True


@contextlib.contextmanager
def as_traced(model: torch.nn.Module, branches: Sequence[Branch], *, training: bool) -> Iterator[None]:
    """The model as it was while it was traced: in that mode, and going the way that ``branches`` were taken."""
    with _mode(model, training), compat.own_warnings(), checkpoints.torch_xla_checkpoints(), traced_random(exact=False):
        if branches:
            follow(model, branches)
        yield


_HINT = "Each line above is one front end's reason; the first is the one to mend."
_BRANCHES = "data-dependent expression"
_BRANCH_HINT = (
    " If a Python branch on the truth value of a tensor is to go the way it goes on the example inputs, build with"
    ' branches="example": a call on which it would go another is then an error.'
)


def _refused_aliases(error: compat.AliasedOutputsError) -> UnsupportedError:
    return UnsupportedError(
        "The model has tensor subclasses, and returns tensors that share memory with each other, which torch cannot trace.",
        [Problem(where, "is a view of another result") for where in error.places],
        hint="Return copies (clone()), or one of them and take the views outside.",
    )


def _refused_overlap(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], error: compat.OverlapError
) -> UnsupportedError:
    where = _place(error)
    if not where:  # what Dynamo captured has no lines of the user's: the model itself has
        with contextlib.suppress(Exception):  # on fake tensors it may fail elsewhere, earlier
            try:
                compat.rehearse(compat.fake_mode_with_shapes(), model, args, kwargs)
            except compat.OverlapError as found:
                where = _place(found)
    return UnsupportedError(
        "The model writes to a tensor whose elements share memory: eager raises, or goes by the order of its loops.",
        [Problem(where or "the model", str(error))],
        hint="Write to a copy (clone()), or to the tensor it is a view of.",
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


def explain(error: Exception) -> str:
    """What a user needs of a front end's exception: its first paragraph, and the user's own line if it has one."""
    text = str(error).strip() or type(error).__name__
    _, dynamo, raised = text.partition("raised exception ")  # eager's own exception, met while tracing
    first = raised.splitlines()[0] if dynamo else _first_paragraph(text)
    where = _place(error)
    return f"{type(error).__name__}: {first}" + (f" [at {where}]" if where and where not in first else "")


def _place(error: Exception) -> str:
    return places.of_error(error) or "; ".join(getattr(error, "__notes__", []))


def _first_paragraph(text: str) -> str:
    """The first paragraph, and the second as well where the first only announces it."""
    first, _, rest = (part.strip() for part in text.partition("\n\n"))
    return f"{first} {_first_paragraph(rest)}" if first.endswith(":") and rest else first


@contextlib.contextmanager
def _mode(model: torch.nn.Module, training: bool) -> Iterator[None]:
    # A trace must not leave its fake tensors in the user's model (torch's own reparametrization does, where one submodule has two
    # names), nor what a first call sets up.
    with rehearsals.unchanged(model):
        if model.training != training:
            model.train(training)
        yield


def _with_dynamo(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: DynamicShapes,
    table: compat.Decompositions | None,
    returned: Returned,
) -> tuple[compat.Joint, tuple[str, ...]]:
    with compat.marked_dynamic(shapes.of_tensors(args, kwargs)):
        captured = _set_up_and_captured(model, args, kwargs)
        _refuse_storage_changes(captured.graph)
        nodes = checkpoints.checkpoint_nodes(captured) if torch.is_grad_enabled() else []
        if any(node.kwargs.get("use_reentrant") for node in nodes):
            with checkpoints.checked_reentrant():
                compat.rehearse(compat.fake_mode_with_shapes(), model, args, kwargs)
        with compat.dynamo_contexts(captured), _named_control_flow(captured.graph), _lines_of_outputs(captured.graph):
            joint = compat.export_joint(captured, args, kwargs, table, note=returned.note)
        if joint.side_effects:
            rehearsals.check_repeats(model, args, kwargs)
        if joint.metadata.mutated_inp_runtime_indices:
            joint = dataclasses.replace(joint, touched=_touched(captured, args, kwargs))
    looked_through = [] if checkpoints.is_tagged(joint.graph_module.graph) else nodes
    return joint, tuple(dict.fromkeys(source_line(node) for node in looked_through))


def _touched(captured: torch.fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> compat.Touched | None:
    """Whose version counters what Dynamo captured moves; None where it does not run on fake tensors."""
    try:
        return compat.rehearse(compat.fake_mode_with_shapes(), captured, args, kwargs).touched
    except Exception:  # the graph may depend on data; that every write moves a counter is then assumed
        return None


def _set_up_and_captured(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.GraphModule:
    """What a first call sets up is often guarded by a lock, which Dynamo cannot enter: then a run on fake tensors comes first."""
    try:
        return compat.capture_with_dynamo(model, args, kwargs)
    except torch._dynamo.exc.Unsupported as error:
        if "`lock`" not in str(error):
            raise
    compat.rehearse(compat.fake_mode_with_shapes(), model, args, kwargs, strict=False)
    return compat.capture_with_dynamo(model, args, kwargs)


@contextlib.contextmanager
def _named_control_flow(graph: torch.fx.Graph) -> Iterator[None]:
    """Errors raised while control flow is differentiated know no line of the user's: tell where it stands in the model."""
    try:
        yield
    except Exception as error:
        calls = [node for node in graph.nodes if isinstance(node.target, torch._ops.HigherOrderOperator)]
        for line in dict.fromkeys(source_line(call) for call in calls):
            error.add_note(line)
        raise


@contextlib.contextmanager
def _lines_of_outputs(graph: torch.fx.Graph) -> Iterator[None]:
    """Outputs that an error names by position get the user's lines that made them."""
    try:
        yield
    except compat.AliasedOutputsError as error:
        nodes = pytree.tree_leaves(graph.output_node().args)
        found = [nodes[position] if position < len(nodes) else None for position in error.positions]
        lines = [source_line(node) if isinstance(node, torch.fx.Node) else "" for node in found]
        error.places = [line or place for line, place in zip(lines, error.places, strict=True)]
        raise


def _with_export(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: DynamicShapes,
    table: compat.Decompositions | None,
    returned: Returned,
) -> tuple[compat.Joint, tuple[str, ...]]:
    if shapes.original is None and shapes.dims:
        raise ValueError("the sizes that vary are known by leaf number only, which this front end does not take")
    if shapes.original is not None:
        _spell_out(model, kwargs)
    with compat.kept_state_changes(), compat.plain_saving(), no_python_random():
        trial = rehearsals.rehearse(model, args, kwargs)
        if trial.reads_nodes:
            raise compat.LostGradientError("reads grad_fn of a tensor, which may get hooks: torch.export leaves those out")
        # Of a function torch.export would know no line: it looks for those of modules.
        lines = compat.recorded_lines("forward") if isinstance(model, FunctionModule) else contextlib.nullcontext()
        with checkpoints.kept_checkpoints() as regions, compat.kept_gradients(), lines:
            exported = torch.export.export(model, args, kwargs, dynamic_shapes=shapes.original, strict=False)
    _refuse_storage_changes(exported.graph)
    mode, fake_args, fake_kwargs = compat.fake_inputs_of(exported, args, kwargs)
    with mode, checkpoints.selected(regions):
        joint = compat.export_joint(exported.module(check_guards=False), fake_args, fake_kwargs, table, note=returned.note)
    _check_bounds(joint.graph_module.graph)
    return _with(trial, joint), _lost(regions, joint)


def _spell_out(model: torch.nn.Module, kwargs: dict[str, Any]) -> None:
    """``torch.export`` finds no sizes of what a model takes as ``**rest``. Set as an attribute of the instance."""
    forward = model.forward

    @functools.wraps(forward)
    def spelled(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    spelled.__signature__ = spelled_out(model, kwargs)  # type: ignore[attr-defined]
    model.forward = spelled


def _with_trace(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: DynamicShapes,
    table: compat.Decompositions | None,
    returned: Returned,
) -> tuple[compat.Joint, tuple[str, ...]]:
    mode = compat.fake_mode_with_shapes()
    dims = {id(tensor): sizes for tensor, sizes in shapes.of_tensors(args, kwargs)}
    fakes: dict[int, torch.Tensor] = {}

    def fake(leaf: Any) -> Any:
        if id(leaf) not in fakes:
            fakes[id(leaf)] = compat.fake_tensor(mode, leaf, dims.get(id(leaf), {}))
        return fakes[id(leaf)]

    leaves, spec = pytree.tree_flatten((args, kwargs))
    integers = {i: compat.varying_integer(mode, leaves[i], bounds) for i, bounds in shapes.integers.items()}
    faked = [fake(leaf) if isinstance(leaf, torch.Tensor) else integers.get(i, leaf) for i, leaf in enumerate(leaves)]
    fake_args, fake_kwargs = pytree.tree_unflatten(faked, spec)
    with compat.kept_state_changes(), compat.plain_saving(), no_python_random():
        trial = rehearsals.rehearse(model, args, kwargs)
        _fix_numbers(model, leaves, shapes)
        with mode, checkpoints.kept_checkpoints() as regions, checkpoints.selected(regions):
            joint = compat.export_joint(model, fake_args, fake_kwargs, table, note=returned.note)
    return _with(trial, joint), _lost(regions, joint)


def _fix_numbers(model: torch.nn.Module, leaves: Sequence[Any], shapes: DynamicShapes) -> None:
    """AOTAutograd makes symbols of all integers: the model is given those that do not vary as they are. Set on the instance."""
    forward = model.forward

    def fixed(*args: Any, **kwargs: Any) -> Any:
        given, spec = pytree.tree_flatten((args, kwargs))
        values = [
            old if isinstance(old, int) and i not in shapes.integers else new
            for i, (old, new) in enumerate(zip(leaves, given, strict=True))
        ]
        args, kwargs = pytree.tree_unflatten(values, spec)
        return forward(*args, **kwargs)

    if any(isinstance(leaf, int) for leaf in leaves):
        model.forward = fixed


def _check_bounds(graph: torch.fx.Graph) -> None:
    """This front end makes ``resize_`` a view, which reaches beyond an argument's storage where the argument grows."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default):
        source = views.root(node)
        if source.op == "placeholder" and views.reach(node) > views.reach(source):
            raise ValueError(f"{source_line(node) or node.name}: reaches beyond the storage of an argument")


_STORAGE_CHANGES = {
    "_lower_version_count_by_1": "assigns to .data of a tensor; use copy_() under no_grad",
    "resize_storage_bytes_": "resizes the storage of a tensor (untyped_storage().resize_)",
}


def _refuse_storage_changes(graph: torch.fx.Graph) -> None:
    """What is done to storage beside the graph would be left out of it.

    Raises:
        UnsupportedError: names each place.
    """
    calls = [(node, getattr(node.target, "_opname", getattr(node.target, "__name__", ""))) for node in graph.nodes]
    problems = [
        Problem(source_line(node) or node.name, _STORAGE_CHANGES[name]) for node, name in calls if name in _STORAGE_CHANGES
    ]
    if problems:
        raise UnsupportedError("The model changes the storage of tensors, which a bundle cannot repeat.", problems)


def _with(trial: rehearsals.Trial, joint: compat.Joint) -> compat.Joint:
    return dataclasses.replace(joint, compares=trial.compares, touched=trial.touched, side_effects=trial.changed)


def _lost(regions: checkpoints.Regions, joint: compat.Joint) -> tuple[str, ...]:
    """The user's lines of checkpoints that left no trace in the joint graph."""
    return tuple(dict.fromkeys(places.of_stack(stack) for stack in regions.lost(joint.graph_module.graph)))


_FRONT_ENDS = {"dynamo": _with_dynamo, "export": _with_export, "trace": _with_trace}

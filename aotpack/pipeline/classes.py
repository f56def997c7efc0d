"""Traces a model for each class of its targets: those that are compiled from the same graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch.export import Dim

from aotpack_loader.errors import CaptureError
from aotpack_loader.format import schema
from aotpack_loader.format.interface import ASSIGNED

from .. import capture
from .._torch.api.recurrent import recurrent_layers
from .._torch.fixes.applying import fix_table
from .._torch.fixes.fake_tensor.strides import decomposed_like_kernels
from .._torch.fixes.fake_tensor.types import decomposed_in_types
from .._torch.tracing import decompositions
from .._torch.tracing.aot_autograd import Decompositions
from .._torch.tracing.state_assignments import PASSABLE
from ..capture import assigned_state
from ..capture.regions import repeated_layers
from ..optimizer.asked import AskedOptimizer, resolve
from ..targets import Target, by_graphs
from ..writer.bundle import TargetEntry
from . import functions, optimizers, traced_methods
from .build_warnings import warn_of_state_code
from .check_requested import check_target
from .context import BuildContext, Example, begin
from .options import Options
from .progress import Run

_DEEP = 12
"""From so many repeated layers on, a build is shorter if it compiles each kind of layer once."""


class Traced(NamedTuple):
    """The methods of a model, traced for targets that are compiled from the same graphs.

    ``contexts`` are what they were traced from, by function: the model's own call has an empty name.
    """

    contexts: Mapping[str, BuildContext]
    methods: list[traced_methods.TracedMethod]
    targets: list[Target]
    asked: Mapping[str, AskedOptimizer]
    optimizers: Mapping[str, schema.Optimizer]

    @property
    def context(self) -> BuildContext:
        """What the model's own call is traced from."""
        return self.contexts[""]

    def check_sizes(self, entries: Sequence[TargetEntry]) -> None:
        """Check that the code of each target takes the sizes that the user asked for."""
        # The arguments of others are not the user's.
        for function, context in self.contexts.items():
            calls = [each for each in self.methods if each.plan.role == "call" and each.plan.function == function]
            methods = {each.plan.name: each.convention.method for each in calls}
            for entry in entries:
                check_target(context.shapes, methods, entry.target)


def trace(
    run: Run,
    example: Example,
    options: Options,
    targets: Sequence[Target],
    passing: contextlib.ExitStack,
    original: object,
) -> list[Traced]:
    """Trace the methods for each class of decompositions among the targets. The classes share what is stored.

    Optimizers that exist already have the parameters of the ``original`` model.

    A model that assigns tensors to buffers, and cannot be traced otherwise, takes them as an argument until ``passing`` ends.
    """
    asked = resolve(options.optimizer, example.model, original)
    if options.functions:
        return _trace(run, example, options, targets, asked, original)
    if not _names_buffers(example):
        try:
            return _trace(run, example, options, targets, asked)
        except CaptureError as error:
            passable = "trace" in options.front_ends and isinstance(example.model, torch.nn.Module)
            if not passable or not any(text in str(error) for text in PASSABLE) or not (names := _assigned_by(example)):
                raise
    elif not (names := _assigned_by(example)):
        return _trace(run, example, options, targets, asked)  # which says that no argument has such a name
    # The other front ends analyse the user's own forward.
    options = replace(options, front_ends=("trace",), regional=False)
    return _trace(run, _with_state(example, names, passing), options, targets, asked)


def _names_buffers(example: Example) -> bool:
    """Whether sizes of buffers are to vary."""
    model, sizes = example.model, example.dynamic_shapes
    return (
        isinstance(model, torch.nn.Module)
        and isinstance(sizes, Mapping)
        and any(name in sizes for name, _ in model.named_buffers())
    )


def _with_state(example: Example, names: Sequence[str], passing: contextlib.ExitStack) -> Example:
    """The example with the buffers ``names`` as a further argument, which the model takes until ``passing`` ends."""
    passing.enter_context(assigned_state.passed(example.model, names))
    state, sizes = assigned_state.example(example.model, names), example.dynamic_shapes
    if isinstance(sizes, Mapping):
        others = {name: size for name, size in sizes.items() if name not in names}
        sizes = {
            **others,
            ASSIGNED: {name: sizes[name] if name in sizes else _automatic(buffer) for name, buffer in state.items()},
        }
    return replace(example, kwargs={**example.kwargs, ASSIGNED: state}, dynamic_shapes=sizes, assigned=names)


def _automatic(buffer: torch.Tensor) -> dict[int, object]:
    """Sizes that vary if the model lets them."""
    return dict.fromkeys(range(buffer.ndim), Dim.AUTO)


def _assigned_by(example: Example) -> list[str]:
    """The buffers to which the model assigns in training."""
    with capture.as_traced(example.model, (), training=True), torch.enable_grad():
        return assigned_state.find(example.model, example.args, example.kwargs)


def _trace(
    run: Run,
    example: Example,
    options: Options,
    targets: Sequence[Target],
    asked: Mapping[str, AskedOptimizer],
    original: object = None,
) -> list[Traced]:
    start = begin(run, example, options)
    warn_of_state_code(run, start.module)
    found = []
    for group in by_graphs(targets):
        context = with_regions(replace(start, decompositions=_decompositions(group[0], options)), group)
        contexts = functions.contexts(run, context, original)
        methods: list[traced_methods.TracedMethod] = []
        with _recurrent_layers(group[0], options):
            for name, one in contexts.items():
                with functions.naming(name):
                    methods += traced_methods.trace(one)
            steps = optimizers.trace(context, asked)
            optimizers.check_gradients(methods, steps.documents)
            found.append(Traced(contexts, [*methods, *steps.methods], group, asked, steps.documents))
    return found


def _recurrent_layers(target: Target, options: Options) -> contextlib.AbstractContextManager[None]:
    """How recurrent layers are traced for a target."""
    able = target.capabilities
    return recurrent_layers(as_scans=able.keeps_loops, kernels=able.has_lstm_kernel and not options.second_derivatives)


def _decompositions(target: Target, options: Options) -> Decompositions:
    """Return the decomposition table of a target, with the entries that every bundle needs."""
    own = target.decompositions(exact_random=options.exact_random) or {}
    table = {**own, **decompositions.TABLE, **fix_table("decomposition")}
    return decomposed_in_types(decomposed_like_kernels(table))


def with_regions(context: BuildContext, targets: Sequence[Target]) -> BuildContext:
    """Decide whether repeated layers are compiled once, unless the user has.

    ``regional`` stays None for a deep model whose layers can be regions: they have no buffers, which a
    region may not write to. A share of memory is kept to by the model as a whole, and eager's random
    numbers are drawn outside of regions.
    """
    options = context.options
    if options.regional is not None:
        return context
    layers = [] if options.memory_budget is not None or options.exact_random else repeated_layers(context.module)
    deep = len(layers) >= _DEEP and not any(next(layer.buffers(), None) is not None for layer in layers)
    if deep and any(target.capabilities.uses_inductor for target in targets):
        return context
    return replace(context, options=replace(options, regional=False))

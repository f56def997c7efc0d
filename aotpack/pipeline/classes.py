"""Traces a model for each class of its targets: those that are compiled from the same graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from aotpack_loader.errors import CaptureError
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
from ..targets import Target, by_graphs
from . import advice, traced_methods
from .context import BuildContext, Example, begin
from .options import Options
from .progress import Run


class Traced(NamedTuple):
    """The methods of a model, traced for targets that are compiled from the same graphs."""

    context: BuildContext
    methods: list[traced_methods.TracedMethod]
    targets: list[Target]


def trace(run: Run, example: Example, options: Options, targets: Sequence[Target], passing: contextlib.ExitStack) -> list[Traced]:
    """Trace the methods for each class of decompositions among the targets. The classes share what is stored.

    A model that assigns tensors with gradients to buffers takes these as arguments until ``passing`` ends.
    """
    model, sizes = example.model, example.dynamic_shapes
    of_buffers = set(sizes) & {name for name, _ in model.named_buffers()} if _may_name_buffers(example) else set()
    try:
        if not of_buffers:
            return _trace(run, example, options, targets)
    except CaptureError as error:
        if not isinstance(model, torch.nn.Module) or not any(text in str(error) for text in PASSABLE):
            raise
        if not (names := _assigned_by(example)):
            raise
    else:
        names = _assigned_by(example)
        sizes = {name: size for name, size in sizes.items() if name not in names}
        sizes |= {ASSIGNED: {name: example.dynamic_shapes.get(name) for name in names}} if names else {}
    passing.enter_context(assigned_state.passed(model, names))
    kwargs = {**example.kwargs, ASSIGNED: assigned_state.example(model, names)}
    passed = replace(example, kwargs=kwargs, dynamic_shapes=sizes, assigned=names)
    # The other front ends analyse the user's own forward.
    return _trace(run, passed, replace(options, front_ends=("trace",), regional=False), targets)


def _may_name_buffers(example: Example) -> bool:
    return isinstance(example.model, torch.nn.Module) and isinstance(example.dynamic_shapes, Mapping)


def _assigned_by(example: Example) -> list[str]:
    """The buffers to which the model assigns in training."""
    with capture.as_traced(example.model, (), training=True), torch.enable_grad():
        return assigned_state.find(example.model, example.args, example.kwargs)


def _trace(run: Run, example: Example, options: Options, targets: Sequence[Target]) -> list[Traced]:
    start = begin(run, example, options)
    advice.before_tracing(run, start.module)
    found = []
    for group in by_graphs(targets):
        context = advice.with_regions(replace(start, decompositions=_decompositions(group[0], options)), group)
        with _recurrent_layers(group[0], options):
            found.append(Traced(context, traced_methods.trace(context), group))
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

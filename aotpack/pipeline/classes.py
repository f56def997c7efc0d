"""Traces a model for each class of its targets: those that are compiled from the same graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from .._torch.api.recurrent import recurrent_layers
from .._torch.fixes.applying import fix_table
from .._torch.fixes.fake_tensor.strides import decomposed_like_kernels
from .._torch.fixes.fake_tensor.types import decomposed_in_types
from .._torch.tracing import decompositions
from .._torch.tracing.aot_autograd import Decompositions
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


def trace(run: Run, example: Example, options: Options, targets: Sequence[Target]) -> list[Traced]:
    """Trace the methods for each class of decompositions among the targets. The classes share what is stored."""
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

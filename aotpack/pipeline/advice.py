"""Says what a user should know about a model before it is traced, and decides whether its layers are compiled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from .._torch.api.state_dict_code import loading_code, saving_code
from ..capture.regions import repeated_layers
from ..targets import Target
from .context import BuildContext
from .progress import Run

_DEEP = 12
"""From so many repeated layers on, a build is shorter if it compiles each kind of layer once."""


def before_tracing(run: Run, model: torch.nn.Module) -> None:
    """Say what of the model is not in the bundle."""
    if saving := saving_code(model):
        run.warn(
            f"state_dict() of the bundle has its parameters and buffers as they are, and does not run {', '.join(saving)}. "
            "Register such hooks on the loaded module."
        )
    if loading := loading_code(model):
        run.note(f"load_state_dict() of the bundle does not run {', '.join(loading)}: register such hooks on the loaded module")


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

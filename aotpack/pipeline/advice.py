"""Says what a user should know about a model before it is traced."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._torch.api.state_dict_code import loading_code, saving_code
from ..capture.regions import repeated_layers
from ..targets import Target, uses_inductor
from .options import Options
from .progress import Run

_DEEP = 12
"""From so many repeated layers on, compiling each of them is most of a build."""


def before_tracing(run: Run, model: torch.nn.Module, options: Options, targets: Sequence[Target]) -> None:
    """Say what of the model is not in the bundle, and which option makes the build shorter."""
    if saving := saving_code(model):
        run.warn(
            f"state_dict() of the bundle has its parameters and buffers as they are, and does not run {', '.join(saving)}. "
            "Register such hooks on the loaded module."
        )
    if loading := loading_code(model):
        run.note(f"load_state_dict() of the bundle does not run {', '.join(loading)}: register such hooks on the loaded module")
    if not options.regional and any(map(uses_inductor, targets)) and (count := len(repeated_layers(model))) >= _DEEP:
        run.note(f"the model repeats {count} layers: with regional=True each kind of layer is compiled once")

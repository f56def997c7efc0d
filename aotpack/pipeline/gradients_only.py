"""Finds out whether a method's graphs serve calls without gradients too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch

from .. import capture
from .._torch.api.process_copy import beside
from .options import MethodPlan

_WORTH_A_COPY: Final = 200
"""Operators of a graph. Running fewer on fake tensors takes less time than copying the process."""


def ask_without_gradients(
    example: tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]],
    plan: MethodPlan,
    plans: Sequence[MethodPlan],
    captured: capture.Captured,
) -> Callable[[], bool]:
    """Find out whether calls without gradients need other graphs than the captured one.

    A large model is asked in a copy of the process, while the build goes on. The returned function waits for the
    answer. It is false if another method of ``plans`` is for such calls.
    """
    others = {(other.training, other.grad, other.autocast) for other in plans}
    if not plan.grad or plan not in plans or (plan.training, False, plan.autocast) in others:
        return lambda: False
    ask = partial(capture.depends_on_gradients, *example, captured.branches, training=plan.training)
    return beside(ask) if len(captured.joint.graph_module.graph.nodes) > _WORTH_A_COPY else ask

"""Gradients that a bundle does not compute: their errors, and the node that raises one when a gradient is asked for.

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

from typing import Any

import torch

from .._torch_compat import opaque
from ..errors import AutogradError, Problem


class _SecondDerivative(torch.autograd.Function):
    """A node where a second derivative would start. It raises an error when one is requested."""

    @staticmethod
    def forward(ctx: Any, order: str, count: int, *values: Any) -> tuple[Any, ...]:
        ctx.order = order
        return values[:count]

    @staticmethod
    @opaque
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        raise higher_order_error(ctx.order)


def refuse_second_derivative(order: str, results: list[Any], anchors: list[torch.Tensor]) -> list[Any]:
    """Make gradients under ``create_graph=True`` usable as they are, and an error when differentiated again.

    ``anchors`` are the tensors whose second derivative could be requested: leaves, earlier nodes,
    incoming gradients.
    """
    if not results:
        return results
    return list(_SecondDerivative.apply(order, len(results), *results, *anchors))  # type: ignore[no-untyped-call]


def batched_gradient_error() -> AutogradError:
    """The error for an incoming gradient without memory that compiled code could read."""
    return AutogradError(
        "Compiled code computes one gradient at a time: is_grads_batched=True and vmap are not for it.",
        hint="Load the bundle with backend='portable', or loop over the gradients.",
    )


def graph_freed_error() -> AutogradError:
    """The error for a second backward after the first has freed the saved tensors."""
    return AutogradError(
        "The backward of this call has already run, and what it needs has been freed.",
        hint="Pass retain_graph=True to the first backward to run it twice.",
    )


def changed_error(name: str) -> AutogradError:
    """The error for a saved tensor that was changed in place since the call."""
    return AutogradError(
        "The backward needs a value that has been modified by an inplace operation since the call.",
        [Problem(name, "was modified")],
        hint="Modify it after the backward, or work on a clone. The original may need other values than the bundle.",
    )


def higher_order_error(order: str) -> AutogradError:
    """The error for a derivative of a higher order than ``order``."""
    return AutogradError(
        f"This bundle holds {order} derivatives only: a gradient of its gradients was asked for.",
        hint="Build it with second_derivatives=True, or use the original model where higher ones are needed.",
    )

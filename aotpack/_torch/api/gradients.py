"""Gradients of our own for functions that are traced."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def with_gradient(
    x: Tensor, function: Callable[[Tensor], Tensor], gradient: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """Compute ``function(x)`` with another gradient than autograd's.

    ``gradient(given, result, found)`` gets the gradient of the result, the result, and the gradient that
    autograd found for ``x``. It returns the one to use, which may be differentiated again.
    """
    if not (torch.is_grad_enabled() and x.requires_grad):
        return function(x)
    inner = torch.ops.aten.alias(x)
    result = function(inner)
    if result.grad_fn is None or inner.grad_fn is None:  # called below autograd
        return result
    given: list[Tensor] = []
    result.grad_fn.register_prehook(lambda gradients: given.append(gradients[0]))
    inner.grad_fn.register_prehook(lambda gradients: (gradient(given[-1], result, gradients[0]),))
    return result

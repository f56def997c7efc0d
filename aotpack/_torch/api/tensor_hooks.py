"""Finds the hooks of a tensor."""

from __future__ import annotations

import torch


def hooks_of(tensor: torch.Tensor) -> list[str]:
    """Names of the functions that ``register_hook`` and ``register_post_accumulate_grad_hook`` were given."""
    hooks = [hook for held in (tensor._backward_hooks, tensor._post_accumulate_grad_hooks) for hook in (held or {}).values()]
    return [name_of(hook) for hook in hooks]


def name_of(hook: object) -> str:
    """The name of a function, or of the class of another callable."""
    return getattr(hook, "__qualname__", type(hook).__qualname__)

"""Finds the hooks of a tensor, and the Python code of a node of autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction


def hooks_of(tensor: torch.Tensor) -> list[str]:
    """Names of the functions that ``register_hook`` and ``register_post_accumulate_grad_hook`` were given."""
    hooks = [hook for held in (tensor._backward_hooks, tensor._post_accumulate_grad_hooks) for hook in (held or {}).values()]
    return [name_of(hook) for hook in hooks]


def name_of(hook: object) -> str:
    """The name of a function, or of the class of another callable."""
    return getattr(hook, "__qualname__", type(hook).__qualname__)


_HOOKED = "aotpack: a hook on a result"


def note_hook(tensor: torch.Tensor) -> None:
    """Note at the node that computes ``tensor`` that the tensor has a hook. Autograd does not tell."""
    node: Any = tensor.grad_fn
    if node is not None:
        node.metadata[_HOOKED] = True


def runs_python(node: Any) -> bool:
    """Whether a node of autograd is an ``autograd.Function``, or a result of it has a noted hook."""
    return isinstance(node, BackwardCFunction) or _HOOKED in node.metadata

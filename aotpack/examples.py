"""The parameters that example inputs are passed to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree


def parameters(model: torch.nn.Module | Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a call of ``model``; those of a function written in C without a signature are not known."""
    try:
        return list(inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model).parameters.values())
    except ValueError:
        return []


def named_leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """The tensors among the arguments by path."""
    given = [("args", args), ("kwargs", kwargs)]
    leaves = [(name + pytree.keystr(path), leaf) for name, tree in given for path, leaf in pytree.tree_leaves_with_path(tree)]
    return [(path, leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]

"""The example inputs: the parameters they are passed to, and which of them are one and the same tensor."""

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


def identical_groups(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[list[int]]:
    """Groups of leaf numbers under which the same tensor stands."""
    places: dict[int, list[int]] = {}
    for i, leaf in enumerate(pytree.tree_leaves((args, kwargs))):
        if isinstance(leaf, torch.Tensor):
            places.setdefault(id(leaf), []).append(i)
    return [group for group in places.values() if len(group) > 1]


def separated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with a tensor of its own at every leaf: what is traced so is right for any pattern of identity."""
    seen: set[int] = set()

    def apart(leaf: torch.Tensor) -> torch.Tensor:
        if id(leaf) not in seen:
            seen.add(id(leaf))
            return leaf
        fresh = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
        return fresh.requires_grad_(leaf.requires_grad)

    separate_args, separate_kwargs = pytree.tree_map_only(torch.Tensor, apart, (args, kwargs))
    return separate_args, separate_kwargs

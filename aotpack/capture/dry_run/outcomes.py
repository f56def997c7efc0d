"""Compares a graph with the model that it was captured from, on real values."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

import torch
import torch.utils._pytree as pytree

from ..._torch.api.functional_call import functional_call
from .eager import copy_of

_TOLERANCE: Final = 1e-3


def same_outcomes(
    model: torch.nn.Module, graph: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, gradients: bool
) -> bool:
    """Whether both have equal results on copies of the arguments and the state, write the same to them, or both fail.

    With ``gradients``, those of the results' sum must be equal, too.
    """
    outcomes = []
    for program in (model, graph):
        try:
            outcomes.append(_outcome(program, args, kwargs, gradients=gradients))
        except Exception:  # the model may take no such sizes
            outcomes.append({})
    one, other = outcomes
    return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())


def _outcome(
    program: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, gradients: bool
) -> Mapping[Hashable, Any]:
    """What a call returns and leaves. The state is named by its tensors, because a graph has other names for it."""
    state = [*program.named_parameters(), *program.named_buffers()]
    copies = {name: copy_of(tensor) for name, tensor in state}
    args, kwargs = pytree.tree_map_only(torch.Tensor, copy_of, (args, kwargs))
    found: dict[Hashable, Any] = {}
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(gradients):
        torch.manual_seed(0)
        results = pytree.tree_leaves(functional_call(program, copies, args, kwargs))
        found |= {("result", i): value for i, value in enumerate(results)}
        leaves = {("argument", i): value for i, value in enumerate(pytree.tree_leaves((args, kwargs)))}
        leaves |= {("state", id(tensor)): copies[name] for name, tensor in state}
        trained = {key: x for key, x in leaves.items() if isinstance(x, torch.Tensor) and x.requires_grad}
        heads = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
        if heads and trained:
            ones = [*map(torch.ones_like, heads)]
            given: tuple[torch.Tensor | None, ...] = torch.autograd.grad(heads, [*trained.values()], ones, allow_unused=True)
            found |= {("gradient", key): value for key, value in zip(trained, given, strict=True) if value is not None}
        written = {key: x for key, x in leaves.items() if isinstance(x, torch.Tensor) and x._version}
    return found | {("written", key): x for key, x in written.items()}


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one == other)
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    scale = one.abs().nan_to_num(0, 0, 0).max().item() if one.numel() and one.dtype != torch.bool else 1
    return torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True)

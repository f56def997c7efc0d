"""Captures a model that has kept values for the sizes of an earlier call (:mod:`.._torch.refusals.size_caches`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule

from .._torch.tracing import dynamo


class _Place(NamedTuple):
    module: torch.nn.Module
    name: str
    value: torch.Tensor


def captured_without_kept(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], fixed: Set[int]
) -> GraphModule | None:
    """Capture the model as if it had kept nothing. ``fixed``: the sizes that another capture made constant.

    Returns None if the model keeps nothing, or if a later call would differ.
    """
    places = [
        _Place(module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor) and fixed & {*value.shape}
    ]
    if not places:
        return None
    with _emptied(places, fixed):
        try:
            captured = dynamo.capture_with_dynamo(model, args, kwargs)
        except dynamo.REFUSED:  # the model needs what it keeps
            return None
    made = captured.meta.get(dynamo.KEPT, {})
    return captured if all(_is(made.get((id(place.module), place.name)), place.value) for place in places) else None


@contextlib.contextmanager
def _emptied(places: Sequence[_Place], fixed: Set[int]) -> Iterator[None]:
    """Replace what the model keeps by tensors of no elements, which fit no sizes of a call."""
    try:
        for module, name, value in places:
            vars(module)[name] = value.new_empty([0 if size in fixed else size for size in value.shape])
        yield
    finally:
        for module, name, value in places:
            vars(module)[name] = value


def _is(made: Any, value: torch.Tensor) -> bool:
    return isinstance(made, torch.Tensor) and made.dtype == value.dtype and torch.equal(made, value)

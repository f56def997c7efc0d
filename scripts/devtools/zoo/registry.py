"""Defines an entry of the zoo, and the parts that entries have in common.

An architecture is a model at reduced size with random weights, with dropout on if it has any, and
inputs for a batch size. A model is called with keyword arguments. It returns a mapping, such as a
model output, with a ``loss``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

Inputs = dict[str, Any]

VOCABULARY = 256
TOKENS = 16
IMAGE = 32
CLASSES = 10
DROPOUT = 0.1

RESAMPLED = (
    "Gradients on `portable`: torch takes upsampling apart to trace it, as for `torch.compile`, so they are added up in another "
    "order. Eager with the same parts gives the bundle's, but for one unit in the last place of one of them."
)


@dataclass(frozen=True)
class Architecture:
    """An entry of the registry.

    ``batch`` is the size to build with. ``package`` is the distribution of the model. ``methods``
    and ``branches`` are the options of the build with those names. ``tolerance`` is the largest
    relative error on the portable target. ``note`` explains it, or a failure.

    ``unstable`` means that eager's training in float32 is no reference: gradients change by more
    than the tolerance when inputs change by a rounding. Compiled targets, which round differently,
    then train in float64.
    """

    name: str
    title: str
    package: str
    model: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    batch: int = 2
    methods: tuple[str, ...] = ("train", "infer")
    branches: str = "refuse"
    tolerance: float = 1e-4
    unstable: bool = False
    note: str = ""


class Objective(nn.Module):
    """A model without a loss of its own. The loss is the mean square of the named results, or of the only one."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, **inputs: Any) -> dict[str, Any]:
        found = self.model(**inputs)
        results = {name: found[name] for name in self.names} if self.names else {"output": found}
        losses = [tensor.square().mean() for tensor in tree_leaves(results)]
        return {"loss": torch.stack(losses).sum(), **results}


def from_transformers(
    name: str,
    title: str,
    model: str,
    inputs: Callable[[int], Inputs],
    *,
    results: tuple[str, ...] = (),
    dtype: torch.dtype = torch.float32,
    prepare: Callable[[Any], None] | None = None,
    **settings: Any,
) -> Architecture:
    """The class ``model`` of transformers. ``settings`` are those of :class:`Architecture`, and of the configuration.

    ``prepare`` is called with the model. ``results`` are the results for a loss if the model has
    none (:class:`Objective`).
    """
    options = taken_from(settings)

    def make() -> nn.Module:
        kind = getattr(importlib.import_module("transformers"), model)
        made: nn.Module = kind(kind.config_class(**settings)).to(dtype)
        if prepare is not None:
            prepare(made)
        return Objective(made, *results) if results else made

    return Architecture(name, title, "transformers", make, inputs, **options)


def taken_from(settings: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings of :class:`Architecture` from ``settings`` and return them. The others are the model's."""
    own = ("batch", "methods", "branches", "tolerance", "unstable", "note")
    return {key: settings.pop(key) for key in own if key in settings}


def tokens(batch: int, length: int = TOKENS) -> Tensor:
    """Random token numbers. 0 to 2 are reserved for padding and other special tokens."""
    return torch.randint(3, VOCABULARY, (batch, length))


def images(batch: int, size: int = IMAGE) -> Inputs:
    """Random images."""
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def labelled_images(batch: int) -> Inputs:
    """Random images with a class each."""
    return {**images(batch), "labels": torch.randint(CLASSES, (batch,))}


def batch_of(inputs: Inputs) -> dict[str, Any]:
    """``dynamic_shapes`` of inputs whose first size is the batch.

    From 64 on, diffusers' upsampling uses another branch.
    """
    batch = Dim("batch", min=2, max=63)
    return {name: {0: batch} for name, value in inputs.items() if isinstance(value, Tensor)}

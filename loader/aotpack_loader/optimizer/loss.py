"""Which result of a call is the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from ..errors import AotpackError, Problem


def loss_of(outputs: Any) -> torch.Tensor:
    """The result that is called ``loss``, or the only scalar result with a gradient.

    Raises:
        AotpackError: there is none, or several; lists the results.
    """
    found = dict(_results(outputs, ""))
    scalars = {name: t for name, t in found.items() if t.dim() == 0 and t.is_floating_point()}
    chosen = ["loss"] if "loss" in scalars else [name for name, t in scalars.items() if t.requires_grad]
    if len(chosen) == 1 and scalars[chosen[0]].requires_grad:
        return scalars[chosen[0]]
    problems = [Problem(name or "the result", f"{str(t.dtype).removeprefix('torch.')}{[*t.shape]}") for name, t in found.items()]
    raise AotpackError(
        "It is not clear which result is the loss.",
        problems,
        hint="Build a model that returns a dictionary with 'loss', a number with a gradient, or one such number.",
    )


def _results(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a result with their paths."""
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if isinstance(value, Mapping):
        items = {str(key): item for key, item in value.items()}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = dict(zip(value._fields, value, strict=True))
    elif isinstance(value, (list, tuple)):
        items = {str(i): item for i, item in enumerate(value)}
    else:
        items = {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else {}
    for name, item in items.items():
        yield from _results(item, f"{path}.{name}" if path else name)

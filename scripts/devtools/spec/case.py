"""A valid vector of the second kind: a model, a build of it, and calls with exactly described arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .arguments import Own, Seen

Json = Any


@dataclass
class Call:
    """A call: its arguments, its mode, and the use of its results. ``refused`` is the rule that it breaks.

    ``function`` is called; empty: the model itself.
    """

    leaves: list[Any]
    training: bool = True
    grad: bool = True
    more: Json = field(default_factory=dict)
    refused: str = ""
    kind: str = "InputError"
    contains: str = ""
    function: str = ""


@dataclass
class Case:
    """A valid vector: a model (a module, or a function of tensors), the example's arguments, build options and calls.

    ``compiled`` names targets beside the portable one on which the calls are made too.
    """

    about: str
    covers: list[str]
    model: Callable[[], Any]
    example: Callable[[], tuple[Any, ...]]
    calls: Callable[[], list[Call]]
    kwargs: Callable[[], dict[str, Any]] = dict
    build: Json = field(default_factory=dict)
    prepare: Callable[[], Any] | None = None
    edit: Callable[[Any], None] | None = None
    compiled: list[str] = field(default_factory=list)


def t(*shape: int, grad: bool = False, computed: bool = False, dtype: torch.dtype = torch.float32) -> Own:
    """A tensor of numbers of both signs, distinct in floating-point types."""
    count = 1
    for size in shape:
        count *= size
    values = torch.arange(count, dtype=torch.float64) * 1.5 - count / 2
    return Own(values.reshape(shape).to(dtype), grad, computed)


class Function(nn.Module):
    """A function as a module without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def of(function: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: function


INFER = {"training": False, "grad": False}


# ---------------------------------------------------------------- results


def two_rows(whole: Own) -> tuple[Seen, Seen]:
    return Seen(whole, [3], [1]), Seen(whole, [4], [1], 2)

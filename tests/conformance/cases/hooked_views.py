"""Results that are views, with hooks and custom backwards between them and what they are views of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from devtools.harness import Case, case, g, module_case


class Tripled(torch.autograd.Function):
    """A view, with three times the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


def hooked(x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 2)
    return x


def beside(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    return y, hooked(y.view(-1))


def below_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    return y, hooked(y.view(-1))[1:]


def of_a_hidden_value(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    return y.view(-1), hooked(y.t())


def by_a_function(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    return y, Tripled.apply(y).view(-1)


def of_the_base(x: Tensor) -> tuple[Tensor, Tensor]:
    y = hooked(x.sin())
    return y, y.view(-1)


class Flattening(nn.Module):
    """A module with a backward hook returns a view."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.flatten.register_full_backward_hook(lambda module, inner, outer: (inner[0] * 5,))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y, self.flatten(y)


_LOST: dict[str, Callable[..., Any]] = {
    "of an argument": lambda x: hooked(x.t()),
    "beside its base": beside,
    "below a view": below_a_view,
    "of a hidden value": of_a_hidden_value,
    "by a function": by_a_function,
}
_KEPT: dict[str, Callable[..., Any]] = {
    "of the base": of_the_base,
    "alone": lambda x: hooked(x.sin().view(-1)),
    "alone, by a function": lambda x: Tripled.apply(x),
}
_MESSAGE = r"hooked_views\.py\W.*a hook or an autograd\.Function lies between it and its base"
REFUSED = {f"hooked views: {name}, {end}": _MESSAGE for name in _LOST for end in ("dynamo", "trace")}
REFUSED["hooked views: by a module"] = _MESSAGE

CASES: list[Case] = [
    *(
        case(f"hooked views: {name}, {end}", function, g(3, 2), front_ends=(end,))
        for name, function in (_LOST | _KEPT).items()
        for end in ("dynamo", "trace")
    ),
    module_case("hooked views: by a module", Flattening, g(3, 2)),
]

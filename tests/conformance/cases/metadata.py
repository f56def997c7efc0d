"""Sizes, strides and ``requires_grad`` that an operator changes in place, read by the model afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from devtools.harness import Case, case, g, laid_out, module_case, t

Change = Callable[[Tensor], Any]

CHANGES: dict[str, Change] = {
    "t_": lambda a: a.t_(),
    "transpose_": lambda a: a.transpose_(0, 1),
    "swapaxes_": lambda a: a.swapaxes_(0, 1),
    "squeeze_": lambda a: a[None].squeeze_() is a.unsqueeze_(2).squeeze_(2),
    "unsqueeze_": lambda a: a.unsqueeze_(0),
    "as_strided_": lambda a: a.as_strided_((3, 2), (2, 1)),
    "as_strided_, as a function": lambda a: torch.as_strided_(a, (3, 2), (2, 1)),
    "two after each other": lambda a: a.t_().unsqueeze_(1),
}


def of_a_result(change: Change) -> Callable[[Tensor], Any]:
    def read(x: Tensor) -> Any:
        a = x * 2
        same = a
        change(a)
        sizes = torch.tensor([*same.size(), *a.stride(), a.dim(), len(a), a.is_contiguous()])
        return a, sizes, a.sum(-1) * a.shape[0], a.reshape(-1, a.size(-1)), [row * 1 for row in a]

    return read


def of_an_argument(change: Change) -> Callable[[Tensor], Any]:
    def read(x: Tensor) -> Any:
        change(x)
        return x * x.shape[0], torch.tensor([*x.size(), *x.stride(), x.ndim])

    return read


def resized_as(x: Tensor, y: Tensor) -> Tensor:
    x.resize_as_(y).add_(1)
    return x * x.shape[0]


def resized_as_with_its_format(x: Tensor, y: Tensor) -> Tensor:
    x.resize_as_(y, memory_format=torch.preserve_format)
    return x * 2


def resized_in_a_format(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.resize_(1, 2, 2, 3, memory_format=torch.channels_last)
    return x.resize_((1, 2, 2, 2), memory_format=torch.channels_last) * 2, y


class StraightThrough(torch.autograd.Function):
    """Its gradient is lost where it is traced by the operators of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


def by_a_view(x: Tensor) -> Any:
    y = torch.zeros(3)
    part = y[:2]
    y.add_(x)
    return StraightThrough.apply(part), part.requires_grad


def of_the_base(x: Tensor) -> Any:
    y = torch.zeros(3)
    y.view(3, 1).add_(x[:, None])
    return StraightThrough.apply(y), y.is_leaf


def by_an_operator(x: Tensor) -> Tensor:
    y = torch.zeros(3)
    torch.ops.aten.add_(y, x)
    return StraightThrough.apply(y)


def in_a_list(x: Tensor) -> Tensor:
    y = torch.zeros(3)
    torch._foreach_add_([y], [x])
    return StraightThrough.apply(y)


def otherwise(x: Tensor) -> Tensor:
    y = torch.zeros(3)
    part = y[:2]
    y.add_(x)
    return part * 2 if part.requires_grad else part * 5


class Quantized(nn.Module):
    """Rounds a part of what it has scaled in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3))
        self.register_buffer("start", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        levels = self.start.clone()
        part = levels[1:]
        levels.mul_(2).add_(self.weight * x)
        return StraightThrough.apply(part)


CHANNELS_LAST = laid_out(t(1, 2, 2, 3), (12, 1, 6, 2))

CASES: list[Case] = [
    *(case(f"sizes read afterwards: {name}, of a result", of_a_result(change), g(2, 3)) for name, change in CHANGES.items()),
    *(
        case(f"sizes read afterwards: {name}, of an argument", of_an_argument(change), t(2, 3))
        for name, change in CHANGES.items()
    ),
    case("input mutation: resize_as_", resized_as, t(2, 3), t(4)),
    case("input mutation: resize_as_, sizes that vary", resized_as, t(2, 3), t(4), dynamic_shapes=({}, {0: Dim.DYNAMIC})),
    case("input mutation: resize_as_, strides of the other", resized_as_with_its_format, t(3, 5), CHANNELS_LAST),
    case("input mutation: resize_ in channels-last", resized_in_a_format, t(3, 5)),
    *(
        case(f"requires_grad read afterwards: {f.__name__.replace('_', ' ')}", f, g(3))
        for f in (by_a_view, of_the_base, by_an_operator, in_a_list, otherwise)
    ),
    module_case("requires_grad read afterwards: of a buffer's copy", Quantized, g(3)),
]

"""Valid vectors of results, views, mutations and bases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .arguments import Own, Seen
from .case import INFER, Call, Case, of, t, two_rows


def views(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    """Views of an argument: repeated, split, unchanged.

    Views of computed values, including one that is also a result.
    """
    row = x[0]
    low, high = x.split(2, 1)
    base = y * 2
    return row, row, low, high, x.view_as(x), base, base.t(), y.sin()[1:], x.transpose(0, dim1=1), torch.view_as_complex(y.cos())


def copies(x: Tensor) -> tuple[Any, ...]:
    """Results that are a contiguous argument or a view of it, but copies of a non-contiguous one."""
    return x.contiguous(), x.reshape(-1)


def only_views(x: Tensor) -> Tensor:
    return x[1:].t()


class Stored(nn.Module):
    """Has parameters and a buffer in one storage, a parameter with a view of it, and a constant tensor."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(12.0)
        self.first, self.second = nn.Parameter(whole[:4]), nn.Parameter(whole[4:10].view(2, 3))
        self.alone, self.other = nn.Parameter(torch.full((3,), 7.0)), nn.Parameter(torch.full((3,), 9.0))
        self.register_buffer("row", whole[2:6])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        scaled = x * self.first.sum() * self.second.sum() + self.alone.sum() * self.other.sum()
        return scaled @ torch.tensor([[1.0, 2.0], [3.0, 4.0]]), self.alone.as_strided((2,), (1,), 1)


# ---------------------------------------------------------------- mutations


def turned(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    """Change strides, sizes and elements in place, one or several at once. One in-place operator has no effect."""
    x.t_()
    y.unsqueeze_(0)
    y.mul_(2)
    z.add_(x.sum())
    return x * 2, y + 1


def shown_elsewhere(x: Tensor, y: Tensor) -> Tensor:
    x.as_strided_((3,), (1,), 2)
    y.as_strided_((2, 2), (1, 2), 1)
    y.mul_(3)
    return y * 2


def resized(x: Tensor) -> Tensor:
    x.resize_(2, 2)
    x.fill_(3)
    return x * 2


class Written(nn.Module):
    """Writes to computed arguments and buffers: with gradients, hidden from autograd, and without a new version."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, seen: Tensor, empty: Tensor) -> Tensor:
        x.mul_(self.weight)
        with torch.no_grad():
            seen.add_(x.sum(0))
        empty.transpose_(0, 0)
        self.steps.add_(1)
        return self.norm(x) + self.weight


def shares(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y * 2


def shares_a_view(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x.sum() + (y * y).sum()


# ---------------------------------------------------------------- sizes and numbers


def _views_calls() -> list[Call]:
    return [
        Call([t(2, 4, grad=True), t(2, 2, grad=True)]),
        Call([t(2, 4, grad=True, computed=True), t(2, 2)], more={"heads": [2, 5]}),
        Call([t(2, 4), t(2, 2)], **INFER),
    ]


def stages(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Each result but the last is computed from the one before it, or from a view of it."""
    hidden = x.sin()
    head = (hidden * 2).view(-1)
    return (head * head).sum(), head, hidden, y.cos()


RESULTS_AND_WRITES: dict[str, Case] = {
    "result_sources": Case(
        "results computed from others: a hook on these is refused, because their gradients are not computed",
        ["C41", "R12"],
        of(stages),
        lambda: (t(2, 3, grad=True), t(2, grad=True)),
        lambda: [
            Call([t(2, 3, grad=True), t(2, grad=True)]),
            Call([t(2, 3, grad=True), t(2, grad=True)], more={"then": "hooked", "heads": [0, 1, 2]}),
            Call(
                [t(2, 3, grad=True), t(2, grad=True)],
                more={"then": "hooked", "heads": [0]},
                refused="R12",
                kind="AutogradError",
                contains="would pass",
            ),
        ],
    ),
    "views": Case(
        "views of an argument and of a computed value: one object twice, two of one call, a base that is a result",
        ["C9", "C17"],
        of(views),
        lambda: (t(2, 4, grad=True), t(2, 2, grad=True)),
        _views_calls,
    ),
    "layout_of_results": Case(
        "results that are the argument or a view of it where it is contiguous, and copies where it is not",
        ["A4", "C28"],
        of(copies),
        lambda: (t(2, 3, grad=True, computed=True),),
        lambda: [
            Call([t(2, 3, grad=True, computed=True)]),
            Call([Seen(t(3, 2, grad=True, computed=True), [2, 3], [1, 2])]),
            Call([Seen(t(3, 2), [2, 3], [1, 2])], **INFER),
        ],
    ),
    "view_from_the_graph": Case(
        "a result that is a view which the graph makes: autograd knows it as one of several views made at once",
        ["R10"],
        of(lambda x: (x * 2).chunk(2)[0]),
        lambda: (t(4, grad=True),),
        lambda: [Call([t(4, grad=True)]), Call([t(4)], **INFER)],
    ),
    "only_views": Case(
        "a method without a backward that takes an argument with a gradient: all its results are views",
        ["A6"],
        of(only_views),
        lambda: (t(3, 2, grad=True),),
        lambda: [Call([t(3, 2, grad=True)]), Call([t(3, 2)], **INFER)],
    ),
    "frozen_argument": Case(
        "an argument that may not require a gradient, whether the other does or not",
        ["A6"],
        of(lambda x, y: x.sin() * y),
        lambda: (t(3, grad=True), t(3)),
        lambda: [
            Call([t(3), t(3)]),
            Call([t(3, grad=True), t(3)]),
            Call([t(3), t(3, grad=True)], refused="A6", contains="args[1]"),
            Call([t(3, grad=True), t(3, grad=True)], refused="A6", contains="args[1]"),
        ],
    ),
    "stored": Case(
        "parameters and a buffer in one storage; a view of a parameter that as_strided takes, inside its own storage",
        ["W3", "W4", "W7", "W8"],
        Stored,
        lambda: (t(2, grad=True),),
        lambda: [Call([t(2, grad=True)], more={"storages": True}), Call([t(2)], **INFER)],
    ),
    "stride_zero": Case(
        "an argument of stride 0: no other can be copied to such memory",
        ["A4"],
        of(lambda x: x * 2),
        lambda: (Seen(t(1, 3), [4, 3], [0, 1]),),
        lambda: [
            Call([Seen(t(1, 3), [4, 3], [0, 1])]),
            Call([t(4, 3)], refused="A4", contains="args[0]"),
        ],
    ),
    "geometry": Case(
        "sizes and strides, elements, and both, changed in place; an in-place operator with nothing to do",
        ["A12", "R1"],
        of(turned),
        lambda: (t(2, 3), t(3), t(3)),
        lambda: [
            Call([t(2, 3), t(3), t(3)]),
            Call([t(2, 3), t(3), t(3)], **INFER),
            Call([Seen(t(3, 2), [2, 3], [1, 2]), t(3), t(3)], refused="A12", contains="args[0]"),
        ],
    ),
    "geometry_absolute": Case(
        "as_strided_ counts from the first element of the storage",
        ["A12"],
        of(shown_elsewhere),
        lambda: (t(6), t(6)),
        lambda: [
            Call([t(6), t(6)]),
            Call([Seen(t(8), [6], [1], 1, detached=True), t(6)]),
            Call([t(6), Seen(t(8), [6], [1], 1, detached=True)], refused="A12", contains="args[1]"),
        ],
    ),
    "resized": Case(
        "resize_ to more elements than there are",
        ["R1"],
        of(resized),
        lambda: (t(3),),
        lambda: [Call([t(3)]), Call([t(3)], **INFER)],
    ),
    "written": Case(
        "writes to a computed argument with a gradient, under no_grad, to buffers, and one in place that does nothing",
        ["R1"],
        Written,
        lambda: (t(4, 3, grad=True, computed=True), t(3), t(2, 2)),
        lambda: [
            Call([t(4, 3, grad=True, computed=True), t(3), t(2, 2)]),
            Call([t(4, 3), t(3), t(2, 2)], **INFER),
            Call([t(4, 3, grad=True), t(3), t(2, 2)], refused="A22", contains="args[0]"),
        ],
    ),
    "base_without_gradients": Case(
        "two arguments in one storage, one written to",
        ["A10", "C18"],
        of(shares),
        lambda: two_rows(t(2, 3)),
        lambda: [
            Call([*two_rows(t(2, 3))]),
            Call([*two_rows(t(2, 3))], **INFER),
            Call([t(3), t(3)], refused="A10", contains="args["),
        ],
    ),
    "base_with_gradients": Case(
        "two views of one tensor that autograd knows, one written to; one of them detached",
        ["A10", "C18"],
        of(shares_a_view),
        lambda: _rows_with_gradients(t(3, 2, grad=True, computed=True)),
        lambda: [
            Call([*_rows_with_gradients(t(3, 2, grad=True, computed=True))]),
            Call([t(2, grad=True, computed=True), t(2)], refused="A10", contains="args["),
        ],
    ),
}


def _rows_with_gradients(whole: Own) -> tuple[Seen, Seen]:
    return Seen(whole, [2], [1]), Seen(whole, [2], [1], 1, detached=True)

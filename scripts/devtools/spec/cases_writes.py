"""Valid vectors of backwards that write: to the gradients they are given, and to buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .case import Call, Case, of, t


class Written(torch.autograd.Function):
    """Its backward writes to the gradient it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient[0].mul_(2)
        return gradient * 4


def written(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return y.sin(), Written.apply(x)  # type: ignore[no-untyped-call]


class Watched(nn.Module):
    """Counts the backwards that reach its first result, and keeps the largest gradient of that."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0]))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("largest", torch.zeros(2))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        def watch(gradient: Tensor) -> None:
            self.count.add_(1)
            self.largest.copy_(torch.maximum(self.largest, gradient.abs().amax(0)))

        h = x * self.weight
        h.register_hook(watch)
        return h.sin(), y * 2


WRITES: dict[str, Case] = {
    "tangent_writes": Case(
        "a backward that writes to the gradient of a result",
        ["C39", "R11"],
        of(written),
        lambda: (t(3, 2, grad=True), t(3, grad=True)),
        lambda: [
            Call([t(3, 2, grad=True), t(3, grad=True)]),
            Call([t(3, 2, grad=True), t(3, grad=True)], more={"then": "retained"}),
            Call([t(3, 2, grad=True), t(3, grad=True)], more={"heads": [0]}),
            Call([t(3, 2), t(3, grad=True)]),
            Call(
                [t(3, 2, grad=True), t(3, grad=True)],
                more={"then": "expanded"},
                refused="R11",
                kind="AutogradError",
                contains="share memory",
            ),
        ],
    ),
    "state_writes": Case(
        "a backward that writes to buffers",
        ["C45", "R14"],
        Watched,
        lambda: (t(3, 2, grad=True), t(3, grad=True)),
        lambda: [
            Call([t(3, 2, grad=True), t(3, grad=True)]),
            Call([t(3, 2, grad=True), t(3, grad=True)], more={"then": "retained"}),
            Call([t(3, 2, grad=True), t(3, grad=True)], more={"heads": [1]}),
            Call(
                [t(3, 2, grad=True), t(3, grad=True)],
                more={"then": "second"},
                refused="R14",
                kind="AutogradError",
                contains="create_graph",
            ),
        ],
    ),
}

"""A sequence of residual blocks with checkpoints, which the tests of recomputation train."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, HIDDEN = 16, 64

Around = Callable[[Callable[..., Tensor], Tensor], Tensor]


class Block(nn.Module):
    """Saves at least ten activations of its input's size, unless it is recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Blocks(nn.Module):
    """``count`` blocks and a ``loss``. ``around`` calls a block on an activation."""

    def __init__(self, around: Around, count: int, loss: Callable[[Tensor], Tensor] = torch.sum) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(count)])
        self.around = around
        self.loss = loss

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.around(block, x)
        return self.loss(x)


def plain(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    return function(*args)


def recomputed(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    return checkpoint(function, *args, use_reentrant=False)  # type: ignore[no-any-return]


def reentrant(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    return checkpoint(function, *args, use_reentrant=True)  # type: ignore[no-any-return]

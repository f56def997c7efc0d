"""A given number of residual blocks, to measure growth with depth."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A residual block of a multilayer perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for block in self.blocks:
            x = block(x)
        return {"loss": x.square().mean()}


def model(layers: int = 2, width: int = 16) -> nn.Module:
    return Stack(layers, width)


def example_inputs(width: int = 16) -> tuple[Tensor]:
    return (torch.randn(8, width),)

"""A multilayer perceptron with BatchNorm, so small that a step consists of overhead."""

import torch
from torch import Tensor, nn


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": self.layers(x).square().mean()}


def model() -> nn.Module:
    return Tiny()


def example_inputs() -> tuple[Tensor]:
    return (torch.randn(8, 16),)

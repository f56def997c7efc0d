"""Perceptrons: steps of microseconds, dropout, mixed precision, and many small parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Perceptron(nn.Module):
    def __init__(self, *layers: nn.Module, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.layers, self.dtype = nn.Sequential(*layers), dtype

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            return self.layers(x).float().square().mean()


def mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Perceptron(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), (torch.randn(8, 16),)


def batch_norm() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Perceptron(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)), (torch.randn(8, 16),)


def dropout_mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = [nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.5)]
    return Perceptron(*layers, nn.Linear(512, 10)), (torch.randn(128, 256),)


def bf16_mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = [nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)]
    return Perceptron(*layers, dtype=torch.bfloat16), (torch.randn(128, 256),)


class ManyParameters(nn.Module):
    """Products with 1,000 vectors, one after another."""

    def __init__(self, count: int = 1000, width: int = 8) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.ones(width) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = x * scale
        return x.square().mean()


def many_parameters() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ManyParameters(), (torch.randn(4, 8),)

"""Recurrent networks, and a classifier of texts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Recurrent(nn.Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)[0].square().mean()


def lstm() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Recurrent(nn.LSTM(64, 64, 2, batch_first=True)), (torch.randn(16, 32, 64),)


def gru() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Recurrent(nn.GRU(64, 64, 2, batch_first=True)), (torch.randn(16, 32, 64),)


def lstm_wide() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Recurrent(nn.LSTM(128, 256, bidirectional=True, batch_first=True)), (torch.randn(16, 16, 128),)


class Text(nn.Module):
    """A convolution over the embeddings of words, and the largest value of each channel."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(2000, width)
        self.convolution = nn.Conv1d(width, 64, 5, padding=2)
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(64, 4)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        found = self.convolution(self.words(words).transpose(1, 2)).relu().amax(2)
        return F.cross_entropy(self.head(self.dropout(found)), labels)


def text() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Text(), (torch.randint(2000, (32, 64)), torch.randint(4, (32,)))

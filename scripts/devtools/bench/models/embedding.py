"""An embedding of as many megabytes as asked for, of which a call reads a few rows. All zeros: nothing is written to build it."""

import torch
from torch import Tensor, nn

WIDTH = 1024


class Embedding(nn.Module):
    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(megabytes * 2**20 // (4 * WIDTH), WIDTH))

    def forward(self, indices: Tensor) -> Tensor:
        return nn.functional.embedding(indices, self.rows).square().mean()


def model(megabytes: int = 1) -> nn.Module:
    return Embedding(megabytes)


def example_inputs() -> tuple[Tensor]:
    return (torch.randint(256, (4,)),)

"""An embedding of a given number of megabytes. A call reads a few rows. All zeros, so its build writes no data."""

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

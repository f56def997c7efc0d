"""Many small parameters: a step of which the call's own work grows with the number of tensors."""

import torch
from torch import Tensor, nn

from devtools.bench.networks.tiny import ManyParameters


def model(count: int) -> nn.Module:
    return ManyParameters(count)


def example_inputs() -> tuple[Tensor]:
    return (torch.randn(4, 8),)

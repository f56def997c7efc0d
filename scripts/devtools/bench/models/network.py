"""A network of ``devtools.bench.networks``, by its name."""

import torch
from torch import Tensor, nn

from devtools.bench.networks import FACTORIES


def model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return FACTORIES[name]()[0]


def example_inputs(name: str) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return FACTORIES[name]()[1]

"""An encoder whose batch varies."""

import torch
from torch import Tensor, nn

from devtools.bench.networks.attention import Encoder


def model() -> nn.Module:
    return Encoder(dropout=0.0, layers=1)


def example_inputs() -> tuple[Tensor]:
    return (torch.randn(8, 32, 128),)


def dynamic_shapes() -> dict[str, object]:
    return {"x": {0: torch.export.Dim("batch", min=2, max=64)}}

"""A small convolutional network with BatchNorm for scikit-learn's digits. Only the build machine needs this file."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Digits(nn.Module):
    """Three convolutions and a linear layer; the loss is part of the model, so the bundle carries it too."""

    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_convolution(1, width, stride=1),
            *_convolution(width, 2 * width, stride=2),
            *_convolution(2 * width, 2 * width, stride=2),
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.features(images).mean(dim=(2, 3)))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def _convolution(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


def model() -> nn.Module:
    return Digits()


def example_inputs() -> tuple[Tensor, Tensor]:
    return torch.rand(64, 1, 8, 8), torch.randint(10, (64,))


def dynamic_shapes() -> dict[str, object]:
    """A function, not a constant: ``torch.export.Dim`` imports sympy, and eager training has no use for that."""
    batch = torch.export.Dim("batch", min=2, max=1797)
    return {"images": {0: batch}, "labels": {0: batch}}

"""ResNet-50 (transformers' default configuration, 25.6 million parameters), random weights, one picture of 224 by 224."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ResNetConfig, ResNetForImageClassification


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.resnet = ResNetForImageClassification(ResNetConfig(num_labels=1000))

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.resnet(images).logits
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def model() -> nn.Module:
    return ResNet50()


def example_inputs() -> tuple[Tensor, Tensor]:
    return torch.rand(1, 3, 224, 224), torch.randint(1000, (1,))

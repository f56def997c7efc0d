"""Networks of convolutions: residual, depthwise, over volumes, with several norms, for diffusion."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Norm = Callable[[int], nn.Module]


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm(outputs), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), norm(outputs))
        same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.skip(x) + self.second(self.first(x)))


class Classifier(nn.Module):
    """A network of pictures, an average over what it returns, and a linear layer."""

    def __init__(self, features: nn.Module, width: int, classes: int = 10) -> None:
        super().__init__()
        self.features, self.head = features, nn.Linear(width, classes)

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.features(pictures).flatten(2).mean(2)), labels)


def _residuals(norm: Norm = nn.BatchNorm2d, width: int = 16) -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), norm(width), nn.ReLU())
    blocks = [Residual(width, width, 1, norm), Residual(width, 2 * width, 2, norm), Residual(2 * width, 4 * width, 2, norm)]
    return Classifier(nn.Sequential(stem, *blocks), 4 * width)


def _pictures(batch: int = 32) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))


def resnet() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return _residuals(width=32), _pictures()


def group_norm() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return _residuals(lambda width: nn.GroupNorm(4, width)), _pictures(8)


def instance_norm() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return _residuals(lambda width: nn.InstanceNorm2d(width, affine=True)), _pictures(8)


def channels_last() -> tuple[nn.Module, tuple[Tensor, ...]]:
    pictures, labels = _pictures(8)
    return _residuals().to(memory_format=torch.channels_last), (pictures.to(memory_format=torch.channels_last), labels)


def depthwise() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Inverted residuals, as in MobileNet."""

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        inner = 4 * inputs
        return [
            *(nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()),
            *(nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()),
            *(nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        ]

    stem = nn.Conv2d(3, 16, 3, 2, 1, bias=False)
    return Classifier(nn.Sequential(stem, *block(16, 24, 1), *block(24, 32, 2), *block(32, 32, 1)), 32), _pictures(8)


class NextBlock(nn.Module):
    """A block of ConvNeXt: its linear layers work on channels-last images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.LayerNorm(width)
        )

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(self.convolution(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x + found


def convnext() -> tuple[nn.Module, tuple[Tensor, ...]]:
    stem, down = nn.Conv2d(3, 48, 2, 2), nn.Conv2d(48, 96, 2, 2)
    features = nn.Sequential(stem, NextBlock(48), NextBlock(48), down, NextBlock(96), NextBlock(96))
    return Classifier(features, 96), _pictures(4)


def three_dimensions() -> tuple[nn.Module, tuple[Tensor, ...]]:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv3d(inputs, outputs, 3, 2, 1), nn.BatchNorm3d(outputs), nn.ReLU()]

    features = nn.Sequential(*block(1, 16), *block(16, 32))
    return Classifier(features, 32), (torch.randn(4, 1, 16, 16, 16), torch.randint(10, (4,)))


class UNet(nn.Module):
    """A small U-Net of a diffusion model: it predicts the noise of a picture at a time."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.norms = nn.ModuleList([nn.GroupNorm(8, width), nn.GroupNorm(8, 2 * width), nn.GroupNorm(8, width)])
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, 1, 1)
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up = nn.Conv2d(3 * width, width, 3, 1, 1)
        self.last = nn.Conv2d(width, 3, 3, 1, 1)
        self.register_buffer("frequencies", torch.exp(-torch.arange(width // 2) * 0.5))

    def forward(self, noisy: Tensor, times: Tensor, noise: Tensor) -> Tensor:
        angles = times[:, None] * self.frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        high = F.silu(self.norms[0](self.first(noisy) + time[:, :, None, None]))
        low = self.middle(F.silu(self.norms[1](self.down(high))))
        tokens = low.flatten(2).transpose(1, 2)
        found, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        low = low + found.transpose(1, 2).unflatten(2, low.shape[2:])
        wide = torch.cat([high, F.interpolate(low, scale_factor=2.0)], 1)
        return F.mse_loss(self.last(F.silu(self.norms[2](self.up(wide)))), noise)


def unet() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return UNet(), (torch.randn(4, 3, 32, 32), torch.rand(4), torch.randn(4, 3, 32, 32))


class Capsules(nn.Module):
    """A capsule network: votes of small capsules for large ones, agreed on in three rounds of routing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 32, 5, 2), nn.Conv2d(32, 64, 3, 2)
        self.votes = nn.Parameter(torch.randn(1, 200, 10, 16, 8) * 0.05)

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        capsules = _squashed(self.second(F.relu(self.first(pictures))).flatten(1).unflatten(1, (200, 8)))
        votes = (self.votes @ capsules[:, :, None, :, None]).squeeze(-1)
        weights = votes.new_zeros(votes.shape[:3])
        for _ in range(3):
            found = _squashed((weights.softmax(2).unsqueeze(-1) * votes).sum(1))
            weights = weights + (votes * found[:, None]).sum(-1)
        return F.cross_entropy(found.norm(dim=-1), labels)


def _squashed(vectors: Tensor) -> Tensor:
    """Vectors with lengths between 0 and 1."""
    square = vectors.square().sum(-1, keepdim=True)
    return square / (1 + square) * vectors / (square + 1e-8).sqrt()


def capsules() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Capsules(), (torch.randn(16, 1, 28, 28), torch.randint(10, (16,)))


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        down = [nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU()]
        up = [nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Sigmoid()]
        self.layers = nn.Sequential(*down, *up)

    def forward(self, pictures: Tensor) -> Tensor:
        return F.mse_loss(self.layers(pictures), pictures)


def autoencoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Autoencoder(), (torch.rand(8, 3, 32, 32),)

"""Networks whose time is in resampling, Fourier transforms, pooling of volumes, and sums over many rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SpatialTransformer(nn.Module):
    """A network that learns where to look: it transforms its pictures before it classifies them."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Linear(3 * 28 * 28, 6)
        self.features = nn.Conv2d(3, 16, 3, padding=1)
        self.head = nn.Linear(16 * 49, 10)

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        transforms = self.where(pictures.flatten(1)).view(-1, 2, 3) * 0.01 + torch.eye(2, 3)
        grid = F.affine_grid(transforms, list(pictures.shape), align_corners=False)
        seen = F.grid_sample(pictures, grid, align_corners=False)
        return F.cross_entropy(self.head(F.max_pool2d(self.features(seen).relu(), 4).flatten(1)), labels)


def spatial_transformer() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SpatialTransformer(), (torch.randn(32, 3, 28, 28), torch.randint(10, (32,)))


class Volumes(nn.Module):
    """Volumes are averaged, convolved and interpolated back to their size, as in segmentation."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv3d(2, 8, 3, padding=1), nn.Conv3d(8, 2, 1)

    def forward(self, volumes: Tensor) -> Tensor:
        small = self.down(F.avg_pool3d(volumes.tanh(), 2)).relu()
        large = F.interpolate(small, scale_factor=2.0, mode="trilinear")
        return F.mse_loss(self.up(F.avg_pool3d(large, 3, 1, 1)), volumes)


def volumes() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Volumes(), (torch.randn(2, 2, 12, 16, 16, requires_grad=True),)


class Contrastive(nn.Module):
    """Embeddings of pairs of views, and their contrastive loss (SimCLR)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, views: Tensor) -> Tensor:
        found = F.normalize(self.layers(views), dim=1)
        same = torch.eye(len(found), dtype=torch.bool)
        likeness = (found @ found.t() / 0.1).masked_fill(same, -1e9)
        pairs = torch.arange(len(found)).roll(len(found) // 2)
        return F.cross_entropy(likeness, pairs)


def contrastive() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Contrastive(), (torch.randn(768, 64),)


class Scorer(nn.Module):
    """Scores of pairs by bilinear forms, and sums of features over many rows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(24)), nn.Parameter(torch.zeros(24))
        self.score = nn.Bilinear(24, 20, 16)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        scaled = (left * self.scale + self.shift).tanh()
        return self.score(scaled, right).square().mean() + (scaled - scaled.mean(0)).square().sum(0).log1p().mean()


def scorer() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Scorer(), (torch.randn(4096, 24), torch.randn(4096, 20))


class Segmentation(nn.Module):
    """Pools a picture's features to several sizes, and interpolates them and the classes back (PSPNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()
        )
        self.reduced = nn.ModuleList(nn.Conv2d(32, 8, 1) for _ in range(4))
        self.classes = nn.Conv2d(64, 21, 1)

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        found = self.features(pictures)
        pooled = [layer(F.adaptive_avg_pool2d(found, side)) for side, layer in zip((1, 2, 3, 6), self.reduced, strict=True)]
        parts = [F.interpolate(part, size=found.shape[2:], mode="bilinear") for part in pooled]
        scores = self.classes(torch.cat([found, *parts], 1))
        return F.cross_entropy(F.interpolate(scores, scale_factor=4.0, mode="bilinear"), labels)


def segmentation() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Segmentation(), (torch.randn(2, 3, 96, 96), torch.randint(21, (2, 96, 96)))


class Keypoints(nn.Module):
    """The places of 17 joints, as means over their maps of probability (soft argmax)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())
        self.maps = nn.Conv2d(32, 17, 1)

    def forward(self, pictures: Tensor, joints: Tensor) -> Tensor:
        maps = self.maps(self.features(pictures))
        shares = maps.flatten(2).softmax(-1).view_as(maps)
        rows, columns = (torch.linspace(-1, 1, side) for side in maps.shape[2:])
        found = torch.stack([(shares.sum(3) * rows).sum(2), (shares.sum(2) * columns).sum(2)], -1)
        return F.mse_loss(found, joints)


def keypoints() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Keypoints(), (torch.randn(8, 3, 64, 64), torch.rand(8, 17, 2))


class Spectrograms(nn.Module):
    """A filter for sound, trained on the magnitudes of its spectra with two lengths of frames."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Sequential(nn.Conv1d(1, 8, 9, padding=4), nn.Tanh(), nn.Conv1d(8, 1, 9, padding=4))

    def forward(self, sounds: Tensor, clean: Tensor) -> Tensor:
        found, loss = self.filter(sounds[:, None])[:, 0], torch.zeros(())
        for length in (128, 512):
            window = torch.hann_window(length)
            spectra = [torch.stft(each, length, length // 4, window=window, return_complex=True) for each in (found, clean)]
            loss = loss + F.l1_loss(*(spectrum.abs().log1p() for spectrum in spectra))
        return loss


def spectrograms() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Spectrograms(), (torch.randn(8, 8000), torch.randn(8, 8000))

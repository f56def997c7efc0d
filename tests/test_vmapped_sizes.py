"""Operators under ``vmap`` whose batch varies, against eager at another batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import aotpack

Function = Callable[[Tensor], Tensor]

IMAGES: list[Function] = [
    lambda x: F.avg_pool2d(x, 2),
    lambda x: F.adaptive_avg_pool2d(x, 2),
    lambda x: F.adaptive_max_pool2d(x, 2),
    lambda x: F.max_pool2d(x, 2),
    lambda x: F.max_pool2d(x[0], 2),  # one image
    lambda x: F.max_pool1d(x[0], 2),
    lambda x: F.interpolate(x, size=(5, 5), mode="bilinear"),
    lambda x: F.interpolate(x, size=(5, 5), mode="bicubic"),
    lambda x: F.interpolate(x, scale_factor=2),
    lambda x: F.grid_sample(x, x[:, 0, :, :2, None].expand(1, 4, 2, 2).tanh(), align_corners=True),
    lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    lambda x: F.fold(F.unfold(x, 2), (4, 4), 2),
    lambda x: F.pixel_unshuffle(F.pixel_shuffle(x.repeat(1, 2, 1, 1), 2), 2),
    lambda x: F.batch_norm(x, None, None, training=True),
    lambda x: F.batch_norm(x, x.detach().mean((0, 2, 3)), torch.ones(2), torch.tensor([1.0, 2.0]), x[0, :, 0, 0], training=False),
    lambda x: F.instance_norm(x),
]
ROWS: list[Function] = [
    lambda x: F.scaled_dot_product_attention(x, x[:, :, :3], torch.ones(1, 2, 3, 4)),
    lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    lambda x: F.kl_div(x, torch.full((4,), 0.25), reduction="none"),
    lambda x: F.kl_div(x, x.softmax(-1), reduction="batchmean")[None],
    lambda x: F.kl_div(x, x.exp(), reduction="sum", log_target=True)[None],
    lambda x: F.bilinear(x, x, torch.ones(2, 4, 4), x[0, 0, :2, 0]),
    lambda x: torch.linalg.cross(x[..., :3], torch.arange(3.0).reshape(1, 1, 1, 3)),
    lambda x: torch.linalg.cross(x[:, :, :3], x[:, :, 1:], dim=2),
    lambda x: torch.xlogy(x[0, 0].abs(), torch.tensor(2.0)),
]


class Vmapped(nn.Module):
    def __init__(self, functions: list[Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.func.vmap(function)(x) for function in self.functions)


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:reduction:UserWarning")
@pytest.mark.parametrize("functions", [IMAGES, ROWS], ids=["images", "rows"])
def test_a_batch_of_vmap_varies(functions: list[Function], tmp_path: Path) -> None:
    model, batch = Vmapped(functions), Dim("batch", min=2, max=64)
    example = torch.randn(5, 1, 2, 4, 4, requires_grad=True)
    shapes = {"x": {0: batch}}
    aotpack.build(model, (example,), out=tmp_path / "m.aotpack", targets=("portable",), dynamic_shapes=shapes, methods=("train",))
    loaded = aotpack.load(tmp_path / "m.aotpack")
    found = []
    for one in (loaded, model):
        x = torch.randn(7, 1, 2, 4, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
        results = one(x)
        sum(result.square().sum() for result in results).backward()
        found.append([*results, x.grad])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)

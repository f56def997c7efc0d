"""Layouts of images around convolutions in compiled code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import aotpack
from aotpack._torch.inductor.layouts import contiguous_convolutions, with_converted_outputs

Function = Callable[[Tensor], Tensor]


def _softmax(x: Tensor) -> Tensor:
    shares = (x - x.amax((2, 3), keepdim=True)).exp()
    return shares / shares.sum((2, 3), keepdim=True)


@pytest.mark.parametrize(
    ("channels", "following", "contiguous"),
    [
        (17, _softmax, True),
        (3, lambda x: torch.var_mean(x, (0, 2, 3))[0], True),
        (5, lambda x: x.flatten(2).tanh().mean(2), True),
        (16, _softmax, False),  # each lane of a vector has a channel
        (30, _softmax, False),  # most have one
        (17, torch.relu, False),  # such a loop has vectors of neighbours in any layout
        (17, torch.amax, False),
        (17, lambda x: torch.var_mean(x)[0], False),
        (17, lambda x: functional.conv2d(x, torch.ones(16, 17, 1, 1)).relu(), False),
    ],
)
def test_convolutions_to_few_channels_before_a_reduction_stay_contiguous(
    channels: int, following: Function, contiguous: bool
) -> None:
    weight = torch.randn(channels, 32, 1, 1)
    graph = make_fx(lambda x: following(functional.conv2d(x, weight)), tracing_mode="fake", _allow_non_fake_inputs=True)(
        torch.randn(2, 32, 8, 8)
    ).graph
    found = [node.meta["val"].shape[1] for node in contiguous_convolutions(graph.nodes, int)]
    assert found == ([channels] if contiguous else [])


@pytest.mark.parametrize(
    ("before", "channels", "side", "converted"),
    [
        (32, 17, 1, True),
        (16, 17, 1, False),  # the image is smaller than the output
        (32, 17, 3, False),  # torch would convert the weight
        (None, 17, 1, False),  # the image is not another convolution's
    ],
)
def test_outputs_are_converted_if_they_are_smaller_than_images(
    before: int | None, channels: int, side: int, converted: bool
) -> None:
    first = [] if before is None else [torch.randn(before, 32, 1, 1)]
    last = torch.randn(channels, 32 if before is None else before, side, side)

    def model(x: Tensor) -> Tensor:
        for weight in (*first, last):
            x = functional.conv2d(x, weight)
        return _softmax(x)

    graph = make_fx(model, tracing_mode="fake", _allow_non_fake_inputs=True)(torch.randn(2, 32, 8, 8)).graph
    contiguous = contiguous_convolutions(graph.nodes, int)
    assert contiguous
    assert with_converted_outputs(contiguous, graph.nodes, int) == (contiguous if converted else [])


class Maps(nn.Module):
    """A convolution that is channels-last, with a contiguous output."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.maps = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 17, 1)

    def forward(self, pictures: Tensor) -> tuple[Tensor]:
        return (self.maps(self.features(pictures).relu()).flatten(2).softmax(-1),)


class Heads(nn.Module):
    """Heads of few channels, and weights for each sample, which are groups over a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.joints = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 17, 1)
        self.picture, self.norm = nn.Conv2d(32, 3, 3, padding=1), nn.InstanceNorm2d(3, affine=True)
        self.weights = nn.Parameter(torch.randn(4 * 8, 32, 1, 1))

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = self.features(pictures).relu()
        own = functional.conv2d(found.reshape(1, 4 * 32, *found.shape[2:]), self.weights, groups=4)
        return self.joints(found).flatten(2).softmax(-1), self.norm(self.picture(found)).tanh(), own.view(4, 8, -1).mean(2)


@pytest.mark.parametrize("network", [Heads, Maps])
def test_heads_have_eagers_values_and_gradients(network: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, pictures = network(), torch.randn(4, 3, 10, 12, requires_grad=True)
    aotpack.build(model, (pictures,), out=tmp_path / "m", targets=("cpu",), methods=("train",))
    loaded = aotpack.load(tmp_path / "m", backend="cpu", check="full")
    expected, found = model(pictures), loaded(pictures)
    torch.testing.assert_close(found, expected)
    weights = [torch.randn_like(each) for each in expected]
    torch.testing.assert_close(
        *(
            torch.autograd.grad(results, [pictures, *each.parameters()], weights)
            for each, results in ((loaded, found), (model, expected))
        ),
        rtol=1e-4,
        atol=1e-4,  # other kernels add in another order
    )

"""Gradients of depthwise convolutions with large windows, by a function of ours (``_torch/inductor/csrc/depthwise.h``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch_fixes.lowering import sources_of

import aotpack
from aotpack._torch.inductor.toolchain.generated_sources import finished_wrapper
from aotpack.tools.measure.profile.memory import peak_of
from aotpack.tools.measure.profile.recording import STEP, read_steps, trace_of

CASES: dict[str, dict[str, Any]] = {
    "7 by 7": {"kernel_size": 7, "padding": 3},
    "few channels, strides": {"kernel_size": 5, "stride": (2, 1), "bias": False, "channels": 3},
    "dilation, padding beyond the image": {"kernel_size": 5, "dilation": (1, 3), "padding": (4, 9)},
    "other rows than columns": {"kernel_size": (3, 7), "padding": (0, 3), "channels": 32},
    "wide": {"kernel_size": (1, 11), "padding": (0, 5), "channels": 33},
    "9 by 9, larger than the image": {"kernel_size": 9, "padding": 8, "stride": 3},
    "3 by 3, by torch": {"kernel_size": 3},
    "7 by 7, two results a channel, by torch": {"kernel_size": 7, "padding": 3, "multiple": 2},
}


def _convolution(channels: int = 20, multiple: int = 1, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(channels, channels * multiple, groups=channels, **options)


class Convolutions(nn.Module):
    def __init__(self, *, transform: bool) -> None:
        super().__init__()
        self.layers, self.transform = (
            nn.ModuleDict({str(i): _convolution(**how) for i, how in enumerate(CASES.values())}),
            transform,
        )

    def forward(self, images: list[Tensor]) -> list[Tensor]:
        """``transform``: the gradients of the images are wanted, too."""
        given = [image.sin() if self.transform else image for image in images]
        return [layer(image) for layer, image in zip(self.layers.values(), given, strict=True)]


def _images(batch: int, generator: torch.Generator) -> list[Tensor]:
    sizes = [(batch, how.get("channels", 20), 9, 8) for how in CASES.values()]
    return [torch.randn(size, generator=generator).to(memory_format=torch.channels_last) for size in sizes]


@pytest.mark.parametrize(("transform", "vary"), [(True, False), (False, False), (True, True)])
def test_gradients(transform: bool, vary: bool, tmp_path: Path) -> None:
    """Compared with eager's in float64, with one thread and with two."""
    torch.manual_seed(0)
    model, generator = Convolutions(transform=transform), torch.Generator().manual_seed(1)
    shapes = ([{0: torch.export.Dim.AUTO}] * len(CASES),) if vary else None
    example = [image.requires_grad_(transform) for image in _images(4, generator)]
    aotpack.build(model, (example,), out=tmp_path / "m", methods=("train",), dynamic_shapes=shapes)
    exact = Convolutions(transform=transform).double()
    exact.load_state_dict(model.state_dict())
    images = [image.requires_grad_(transform) for image in _images(3 if vary else 4, generator)]
    expected = _gradients(exact, [image.detach().double().requires_grad_(transform) for image in images])
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found = _gradients(aotpack.load(tmp_path / "m"), images)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4, check_dtype=False)
    finally:
        torch.set_num_threads(before)


def _gradients(model: nn.Module, images: list[Tensor]) -> list[Tensor]:
    """The gradients of the parameters and of the images that require one."""
    loss = torch.stack([result.square().sum() for result in model(images)]).sum()
    return list(torch.autograd.grad(loss, [*model.parameters(), *(image for image in images if image.requires_grad)]))


def test_windows_are_not_copied(tmp_path: Path) -> None:
    """oneDNN takes 49 times the memory of an image."""
    model, x = (
        _convolution(kernel_size=7, padding=3, channels=64),
        torch.randn(2, 64, 16, 16).to(memory_format=torch.channels_last),
    )
    aotpack.build(model, (x,), out=tmp_path / "m", methods=("train",))
    loaded = aotpack.load(tmp_path / "m")
    loaded(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled, record_function(STEP):
        loaded(x).sum().backward()
    (step,) = read_steps(trace_of(profiled)["traceEvents"])
    assert x.nbytes < peak_of(step).size < 4 * x.nbytes


def test_only_grouped_convolutions_have_the_function(tmp_path: Path) -> None:
    x = torch.randn(2, 8, 9, 9)
    for groups in (1, 8):
        sources = sources_of(nn.Conv2d(8, 8, 7, groups=groups), (x,), tmp_path)
        (wrapper,) = (source for source in sources if "convolution_backward(" in source)
        assert ("aotpack::convolution_backward(" in finished_wrapper(wrapper, 0, 1)) == (groups == 8)

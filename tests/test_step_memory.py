"""The peak of memory in a step of compiled code, compared with eager's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

import aotpack
from aotpack.tools.measure.profile.memory import peak_of
from aotpack.tools.measure.profile.recording import STEP, read_steps, trace_of
from devtools.bench.networks.attention import vision_transformer
from devtools.bench.networks.sparse import Recommender


class InBFloat16(nn.Module):
    """In the backward, one loop is the last to read a saved activation. The next one converts the gradient of a weight."""

    def __init__(self) -> None:
        super().__init__()
        first, second, last = nn.Linear(128, 512), nn.Linear(512, 512), nn.Linear(512, 10)
        self.layers = nn.Sequential(first, nn.GELU(), second, nn.GELU(), last)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            result: Tensor = self.layers(x)
            return result.float().square().mean()


def _in_bfloat16() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return InBFloat16(), (torch.randn(128, 128),)


def _recommender() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The sum of three gradients has many readers, and the gradient of a weight can be computed early or late."""
    return Recommender(tables=12), (torch.randn(128, 13), torch.randint(1000, (128, 12)), torch.rand(128).round())


@pytest.mark.parametrize("network", [_in_bfloat16, _recommender, vision_transformer])
def test_peak_is_not_above_eagers(network: Callable[[], tuple[nn.Module, tuple[Any, ...]]], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args = network()
    aotpack.build(model, args, out=tmp_path / "m", methods=("train",))
    loaded = aotpack.load(tmp_path / "m")
    assert _peak(loaded, args) <= _peak(model, args)


def _peak(model: nn.Module, args: tuple[Any, ...]) -> int:
    """The most bytes of tensors in a step, without the parameters."""
    for _ in range(2):
        model.zero_grad()
        model(*args).backward()
    model.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled, record_function(STEP):
        model(*args).backward()
    (step,) = read_steps(trace_of(profiled)["traceEvents"])
    return peak_of(step).size

"""Every number of a half type, through operators whose kernels round each of their steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import aotpack

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "binary_cross_entropy": lambda x: functional.binary_cross_entropy(
        x.abs().clamp(max=1).nan_to_num(), torch.full_like(x, 0.3), torch.full_like(x, 1.7)
    ),
    "logit": torch.logit,
    "logit with eps": lambda x: torch.logit(x, 1e-3),
    "mse_loss": lambda x: functional.mse_loss(x, torch.full_like(x, 0.3), reduction="none"),
    "mse_loss, mean": lambda x: functional.mse_loss(x * 1e-3, torch.full_like(x, 0.3)),
    "soft_margin_loss": lambda x: functional.soft_margin_loss(x, torch.ones_like(x), reduction="none"),
}


class Each(nn.Module):
    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(x) for function, x in zip(FUNCTIONS.values(), given, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half(dtype: torch.dtype, tmp_path: Path) -> None:
    """Results and gradients are eager's to the last bit. What is infinite there is infinite here: a ``GradScaler`` sees it."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    given = [every.clone().requires_grad_() for _ in FUNCTIONS]
    aotpack.build(Each(), tuple(given), out=tmp_path / "m", targets=("cpu",), methods=("train",), check=False)

    def step(model: nn.Module) -> list[Tensor]:
        results = model(*given)
        return [*results, *torch.autograd.grad(results, given, [torch.full_like(result, 0.7) for result in results])]

    names = [*FUNCTIONS, *(f"gradient of {name}" for name in FUNCTIONS)]
    for name, here, eager in zip(names, step(aotpack.load(tmp_path / "m")), step(Each()), strict=True):
        same = (here == eager) | (here.isnan() & eager.isnan())
        assert same.all(), f"{name}: {here[~same][:5]} for {eager[~same][:5]}"

"""Random numbers on XLA: a seed for each call, fresh each time, repeated under ``xm.set_rng_state``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from aotpack_loader import load

from . import models
from .test_train import build


class Dropout(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.3, self.training)


@pytest.fixture
def dropout(tmp_path: Path) -> torch.nn.Module:
    return load(build(Dropout(), (torch.ones(200, 300, requires_grad=True),), tmp_path / "model.aotpack"), device="xla")


def step(model: torch.nn.Module, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The result for ones, and the gradient of its sum: both are the scaled mask."""
    x = torch.ones(200, 300, device=device, requires_grad=True)
    y = model(x)
    y.sum().backward()
    return y.detach().cpu(), x.grad.cpu()


def test_dropout_keeps_rate_and_scale_and_backward_has_the_same_mask(dropout: torch.nn.Module, device: torch.device) -> None:
    result, gradient = step(dropout, device)
    kept = result != 0
    assert torch.equal(result, gradient)
    # 60,000 draws: five standard deviations are 0.0094.
    assert abs(kept.float().mean().item() - 0.7) < 0.0094
    torch.testing.assert_close(result[kept], torch.full_like(result[kept], 1 / 0.7))


def test_calls_draw_anew_and_repeat_under_the_state(dropout: torch.nn.Module, device: torch.device) -> None:
    import torch_xla.core.xla_model as xm

    xm.set_rng_state(7)
    first, second = step(dropout, device)[0], step(dropout, device)[0]
    xm.set_rng_state(7)
    again = step(dropout, device)[0], step(dropout, device)[0]
    assert not torch.equal(first, second)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])


def test_eval_mode_drops_nothing(dropout: torch.nn.Module, device: torch.device) -> None:
    x = torch.ones(200, 300, device=device)
    with torch.no_grad():
        assert torch.equal(dropout.eval()(x).cpu(), x.cpu())


def test_layers_of_one_call_draw_differently(tmp_path: Path, device: torch.device) -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return F.dropout(x, 0.5, self.training), F.dropout(x, 0.5, self.training)

    loaded = load(build(Twice(), (torch.ones(100, 100),), tmp_path / "model.aotpack", methods=("train",)), device="xla")
    with torch.no_grad():
        first, second = loaded(torch.ones(100, 100, device=device))
    assert not torch.equal(first.cpu(), second.cpu())
    agree = (first == second).float().mean().item()
    assert abs(agree - 0.5) < 0.025  # independent: five standard deviations of 10,000 draws


def test_a_gpt_with_dropout_trains(tmp_path: Path, device: torch.device) -> None:
    from .test_train import train

    model, args = models.gpt(dropout=0.1)
    loaded = load(build(model, args, tmp_path / "model.aotpack"), device="xla")
    losses = train(loaded, tuple(arg.to(device) for arg in args))
    assert losses[-1] < losses[0] / 4

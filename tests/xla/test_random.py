"""Random numbers on XLA: a seed for each call, fresh each time, repeated under ``xm.set_rng_state``."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from aotpack.targets.xla.lower import lower
from aotpack.targets.xla.normalise import normalise
from aotpack_loader import load
from aotpack_loader.devices.generator import exchange_random_state, random_state

from . import models
from .programs import executable
from .test_train import build


class Dropout(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.3, self.training)


@pytest.fixture
def dropout(tmp_path: Path) -> torch.nn.Module:
    return load(build(Dropout(), (torch.ones(200, 300, requires_grad=True),), tmp_path / "model.aotpack"), backend="xla:cpu")


def step(model: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """The result for ones, and the gradient of its sum: both are the scaled mask."""
    x = torch.ones(200, 300, requires_grad=True)
    y = model(x)
    y.sum().backward()
    return y.detach().cpu(), x.grad.cpu()


def test_dropout_keeps_rate_and_scale_and_backward_has_the_same_mask(dropout: torch.nn.Module) -> None:
    result, gradient = step(dropout)
    kept = result != 0
    assert torch.equal(result, gradient)
    # 60,000 draws: five standard deviations are 0.0094.
    assert abs(kept.float().mean().item() - 0.7) < 0.0094
    torch.testing.assert_close(result[kept], torch.full_like(result[kept], 1 / 0.7))


def test_calls_draw_anew_and_repeat_under_the_state(dropout: torch.nn.Module) -> None:
    torch.manual_seed(7)
    first, second = step(dropout)[0], step(dropout)[0]
    torch.manual_seed(7)
    again = step(dropout)[0], step(dropout)[0]
    assert not torch.equal(first, second)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])


def test_eval_mode_drops_nothing(dropout: torch.nn.Module) -> None:
    x = torch.ones(200, 300)
    with torch.no_grad():
        assert torch.equal(dropout.eval()(x).cpu(), x.cpu())


def test_layers_of_one_call_draw_differently(tmp_path: Path) -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return F.dropout(x, 0.5, self.training), F.dropout(x, 0.5, self.training)

    loaded = load(build(Twice(), (torch.ones(100, 100),), tmp_path / "model.aotpack", methods=("train",)), backend="xla:cpu")
    with torch.no_grad():
        first, second = loaded(torch.ones(100, 100))
    assert not torch.equal(first.cpu(), second.cpu())
    agree = (first == second).float().mean().item()
    assert abs(agree - 0.5) < 0.025  # independent: five standard deviations of 10,000 draws


def test_a_gpt_with_dropout_trains(tmp_path: Path) -> None:
    from .test_train import train

    model, args = models.gpt(dropout=0.1)
    loaded = load(build(model, args, tmp_path / "model.aotpack"), backend="xla:cpu")
    losses = train(loaded, args)
    assert losses[-1] < losses[0] / 4


def test_a_backward_draws_again_what_its_forward_drew() -> None:
    """As where a checkpoint is computed again: the state that the forward saves is its seed."""
    forward, backward = _draws(again=False), _draws(again=True)
    x = torch.ones(50, 40)
    saved, kept, other = _run(forward, [x])
    assert (saved.dtype, saved.shape) == (torch.int64, ())
    kept_again, other_again = _run(backward, [x, saved])
    assert torch.equal(kept.cpu(), kept_again.cpu())
    assert not torch.equal(other.cpu(), other_again.cpu())


def _draws(*, again: bool) -> torch.fx.GraphModule:
    """Two dropout masks; the first from the state that comes in, or from one that goes out."""
    graph = torch.fx.Graph()
    with FakeTensorMode() as mode:
        value, state = mode.from_tensor(torch.ones(50, 40)), torch.empty(torch.get_rng_state().shape, dtype=torch.uint8)

    def node(target: Any, *args: Any, value: Any) -> torch.fx.Node:
        made = graph.call_function(target, args)
        made.meta["val"] = value
        return made

    def mask() -> torch.fx.Node:
        pair = node(torch.ops.aten.native_dropout.default, x, 0.5, True, value=(value, value > 0))
        return node(operator.getitem, pair, 1, value=value > 0)

    x = graph.placeholder("x")
    x.meta["val"] = value
    if again:
        given = graph.placeholder("state")
        given.meta["val"] = state
        own = node(exchange_random_state, given, value=state)
    else:
        own = node(random_state, value=state)
    outputs = [] if again else [own]
    outputs.append(mask())
    if again:
        node(exchange_random_state, own, value=state)
    outputs.append(mask())
    graph.output(tuple(outputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _run(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return executable(lower(normalise(module), "train.backward", frozenset()))(list(inputs))

"""Bundles train as eager does: gradients, mutated arguments, kept graphs. test_precompiled.py has ten steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import aotpack
from aotpack_loader import load

from . import models

STEPS = 10


def build(model: torch.nn.Module, args: tuple[Any, ...], out: Path, **options: Any) -> Path:
    aotpack.build(model, args, out=out, targets=("xla:cpu",), **options)
    return out


def train(model: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(*args)
        loss = loss[0] if isinstance(loss, tuple) else loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_gradients_and_inference(tmp_path: Path) -> None:
    model, args = models.gpt()
    loaded = load(build(model, args, tmp_path / "model.aotpack"), backend="xla:cpu")
    given = args
    for module, arguments in ((model, args), (loaded, given)):
        module(*arguments)[0].backward()
    for (name, expected), found in zip(model.named_parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(found.grad.cpu(), expected.grad, msg=lambda text, name=name: f"{name}: {text}")
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(*given)[1].cpu(), model.eval()(*args)[1])


def test_mutated_arguments_and_aliases(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, ...]:
            self.seen.add_(1)
            total.add_(x.detach().sum(0))
            return x * 2, total, x.t()

    x, total = torch.randn(3, 4, requires_grad=True), torch.zeros(4)
    loaded = load(build(Model(), (x, total), tmp_path / "model.aotpack"), backend="xla:cpu")
    there, sums = x.detach().requires_grad_(), total
    doubled, same, turned = loaded(there, sums)
    assert same is sums
    assert turned._base is there
    assert turned.shape == (4, 3)
    (doubled.sum() + turned.sum()).backward()
    torch.testing.assert_close(there.grad.cpu(), torch.full((3, 4), 3.0))
    torch.testing.assert_close(sums.cpu(), x.detach().sum(0))
    loaded(there, sums)
    torch.testing.assert_close(sums.cpu(), 2 * x.detach().sum(0))
    assert loaded.seen.item() == 2


def test_gradients_accumulate_and_graphs_are_kept(tmp_path: Path) -> None:
    model, args = models.mlp()
    loaded = load(build(model, args, tmp_path / "model.aotpack"), backend="xla:cpu")
    given = args
    for module, arguments in ((model, args), (loaded, given)):
        first, second = module(*arguments), module(*arguments)
        first.backward(retain_graph=True)
        first.backward()
        second.backward()
    for expected, found in zip(model.parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(found.grad.cpu(), expected.grad)

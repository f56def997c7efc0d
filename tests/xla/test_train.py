"""Bundles train on an XLA device as eager does on the CPU: losses, parameters, buffers; and compile nothing after load."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FreshProcess

import aotpack
from aotpack_loader import load

from . import models

STEPS = 10


def build(model: torch.nn.Module, args: tuple[Any, ...], out: Path, **options: Any) -> Path:
    aotpack.build(model, args, out=out, targets=("xla",), front_ends=("export",), **options)
    return out


def train(model: torch.nn.Module, args: tuple[torch.Tensor, ...], after_step: Callable[[], object] = lambda: None) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(*args)
        loss = loss[0] if isinstance(loss, tuple) else loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after_step()
    return losses


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_ten_steps_are_eagers(name: str, tmp_path: Path, device: torch.device, compiles: Callable[[], int]) -> None:
    model, args = getattr(models, name)()
    loaded = load(build(copy.deepcopy(model), args, tmp_path / "model.aotpack"), device="xla")
    assert {p.device for p in loaded.parameters()} == {device}
    counts: list[int] = []
    losses = train(loaded, tuple(arg.to(device) for arg in args), lambda: counts.append(compiles()))
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(train(model, args)), rtol=1e-5, atol=1e-5)
    assert losses[-1] < losses[0] / 2
    for entry, value in loaded.state_dict().items():
        torch.testing.assert_close(value.cpu(), model.state_dict()[entry], rtol=1e-4, atol=1e-5)
    # The optimizer's own graphs are compiled in the first steps, as eager torch_xla compiles them; then nothing is.
    assert counts[2:] == [counts[2]] * (STEPS - 2)


def test_a_fresh_process_compiles_at_load_alone(tmp_path: Path, fresh_process: FreshProcess) -> None:
    model, args = models.mlp()
    path = build(model, args, tmp_path / "model.aotpack")
    torch.save(args, tmp_path / "args.pt")
    told = fresh_process(
        """
        import json, sys
        import torch
        from aotpack_loader import load

        model = load(sys.argv[1], device="xla")
        from torch_xla.debug import metrics
        count = lambda: metrics.counter_value("UncachedCompile")
        loaded = count()
        args = [arg.to("xla") for arg in torch.load(sys.argv[2])]
        counts = []
        for _ in range(3):
            loss = model(*args)
            model.zero_grad()
            loss.backward(torch.ones((), device="xla"))
            counts.append(count())
        values = [loss.item(), *(p.grad.sum().item() for p in model.parameters())]
        print(json.dumps({"loaded": loaded, "counts": counts, "values": values, "compiler": "aotpack" in sys.modules}))
        """,
        path,
        tmp_path / "args.pt",
    )
    assert told["loaded"] == 3  # train.forward, train.backward, infer.forward
    assert told["counts"] == [4, 4, 4]  # the gradient that was passed in, ``ones``, is the caller's own computation
    assert not told["compiler"]
    for _ in range(3):
        model.zero_grad()
        loss = model(*args)
        loss.backward()
    expected = [loss.item(), *(p.grad.sum().item() for p in model.parameters())]
    torch.testing.assert_close(told["values"], expected, rtol=1e-4, atol=1e-5)


def test_gradients_and_inference(tmp_path: Path, device: torch.device) -> None:
    model, args = models.gpt()
    loaded = load(build(model, args, tmp_path / "model.aotpack"), device="xla")
    given = tuple(arg.to(device) for arg in args)
    for module, arguments in ((model, args), (loaded, given)):
        module(*arguments)[0].backward()
    for (name, expected), found in zip(model.named_parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(found.grad.cpu(), expected.grad, msg=lambda text, name=name: f"{name}: {text}")
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(*given)[1].cpu(), model.eval()(*args)[1])


def test_mutated_arguments_and_aliases(tmp_path: Path, device: torch.device) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, ...]:
            self.seen.add_(1)
            total.add_(x.detach().sum(0))
            return x * 2, total, x.t()

    x, total = torch.randn(3, 4, requires_grad=True), torch.zeros(4)
    loaded = load(build(Model(), (x, total), tmp_path / "model.aotpack"), device="xla")
    there, sums = x.detach().to(device).requires_grad_(), total.to(device)
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


def test_gradients_accumulate_and_graphs_are_kept(tmp_path: Path, device: torch.device) -> None:
    model, args = models.mlp()
    loaded = load(build(model, args, tmp_path / "model.aotpack"), device="xla")
    given = tuple(arg.to(device) for arg in args)
    for module, arguments in ((model, args), (loaded, given)):
        first, second = module(*arguments), module(*arguments)
        first.backward(retain_graph=True)
        first.backward()
        second.backward()
    for expected, found in zip(model.parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(found.grad.cpu(), expected.grad)

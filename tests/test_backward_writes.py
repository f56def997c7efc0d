"""Buffers that a hook or a custom backward writes to: amax histories of 8-bit training, statistics and counts of gradients."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aotpack
from aotpack_loader.errors import AutogradError


class Scaled(torch.autograd.Function):
    """Scales by an amax history, as layers for 8-bit training do, and updates it in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, history: Tensor) -> Tensor:
        ctx.history = history
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        scale = 2 / (1 + ctx.history.amax())
        ctx.history.copy_(torch.roll(ctx.history, 1))
        ctx.history[0].copy_(gradient.abs().amax())
        return gradient * scale, None


class History(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 3)
        for name in ("inner", "outer"):
            self.register_buffer(name, torch.zeros(4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = Scaled.apply(self.first(x), self.inner)  # type: ignore[no-untyped-call]
        return (Scaled.apply(self.second(h), self.outer).tanh(),)  # type: ignore[no-untyped-call]


class Hooked(nn.Module):
    """Two places with a buffer each: a backward of the first result alone does not reach the second place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("norm", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        def count(gradient: Tensor) -> None:
            self.count.add_(1)

        def keep(gradient: Tensor) -> None:
            self.norm.copy_(torch.maximum(self.norm, gradient.norm()))

        h = self.first(x).relu()
        h.register_hook(count)
        k = self.second(h)
        k.register_hook(keep)
        return h * 2, k


def _used(model: Any) -> list[Tensor]:
    """What buffers and gradients are after calls whose backwards come later, in part, or for one parameter alone."""
    generator = torch.Generator().manual_seed(1)
    seen: list[Tensor] = []
    for wanted in (slice(None), slice(1), slice(-1, None)):
        calls = [model(torch.randn(2, 4, generator=generator)) for _ in range(2)]
        for results in calls:
            sum(result.square().sum() for result in results[wanted]).backward()
            seen += [buffer.clone() for buffer in model.buffers()]
    torch.autograd.grad(model(torch.randn(2, 4, generator=generator))[-1].sum(), [model.second.bias])
    return seen + [buffer.clone() for buffer in model.buffers()] + [p.grad for p in model.parameters()]


@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("kind", [History, Hooked])
def test_a_backward_writes_to_buffers(kind: type[nn.Module], target: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = kind()
    aotpack.build(model, (torch.randn(2, 4),), out=tmp_path / "m.aotpack", targets=(target,), methods=("train",))
    torch.testing.assert_close(_used(aotpack.load(tmp_path / "m.aotpack")), _used(copy.deepcopy(model)), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hooked") / "m.aotpack"
    aotpack.build(Hooked(), (torch.randn(2, 4),), out=out, targets=("portable",), methods=("train",))
    return out


def test_a_retained_graph_writes_again(hooked: Path) -> None:
    model: Any = aotpack.load(hooked)
    loss = model(torch.randn(2, 4))[0].sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert model.count == 2


def test_gradients_of_gradients_are_refused(hooked: Path) -> None:
    model: Any = aotpack.load(hooked)
    with pytest.raises(AutogradError, match="Neither create_graph=True"):
        torch.autograd.grad(model(torch.randn(2, 4))[1].sum(), list(model.parameters()), create_graph=True)


class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))


def _add(total: Tensor, gradient: Tensor) -> None:
    total.add_(gradient.sum(0))


class SharedBuffer(State):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        results = []
        for _ in range(3):
            x = self.layer(x).tanh()
            x.register_hook(lambda gradient: _add(self.total, gradient))
            results.append(x)
        return tuple(results)


def test_a_backward_of_a_part_is_refused_where_a_buffer_has_several_writers(tmp_path: Path) -> None:
    model, x = SharedBuffer(), torch.randn(2, 4)
    aotpack.build(model, (x,), out=tmp_path / "m.aotpack", targets=("portable",), methods=("train",))
    loaded: Any = aotpack.load(tmp_path / "m.aotpack")
    for one in (model, loaded):
        one.zero_grad()
        one.total.zero_()
        sum(result.sum() for result in one(x)).backward()
    torch.testing.assert_close(loaded.total, model.total)
    with pytest.raises(AutogradError, match="reaches some of them"):
        loaded(x)[0].sum().backward()


class InBoth(State):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        self.total.add_(1)
        h: Tensor = self.layer(x)
        h.register_hook(lambda gradient: _add(self.total, gradient))
        return h


class OfView(State):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        part, h = self.total[:2], self.layer(x)
        h.register_hook(lambda gradient: _add(part, gradient[:, :2]))
        return h  # type: ignore[no-any-return]


class OfParameter(State):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        h: Tensor = self.layer(x)
        h.register_hook(lambda gradient: _add(self.layer.bias.data, gradient))
        return h


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (InBoth, "'total', which forward writes to"),
        (OfView, "a view of a buffer that forward has made"),
        (OfParameter, "an argument, parameter or buffer"),
    ],
)
def test_other_writes_are_refused_with_their_line(kind: type[nn.Module], message: str, tmp_path: Path) -> None:
    with pytest.raises(aotpack.AotpackError, match=rf"{message}(.*\n)*.*test_backward_writes\.py"):
        aotpack.build(kind(), (torch.randn(2, 4),), out=tmp_path / "m.aotpack", targets=("portable",), methods=("train",))

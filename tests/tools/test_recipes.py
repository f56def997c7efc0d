"""Recipes that people train with: each step's loss is that of eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as distributed_checkpoint
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import SGD, AdamW
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import aotpack
import aotpack_loader

pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning"), pytest.mark.filterwarnings("ignore::UserWarning")]

Step = Callable[[Tensor], float]
Recipe = Callable[[Any, Path], Step]


class Model(nn.Module):
    """With BatchNorm: statistics are state that recipes update."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.norm(self.linear(x))
        return {"loss": (y.sin() + y * 0.5).square().mean(), "y": y}


def _plain(model: Any, optimizer: Any, before_step: Callable[[], object] = lambda: None) -> Step:
    def step(x: Tensor) -> float:
        optimizer.zero_grad()
        loss = model(x)["loss"]
        loss.backward()
        before_step()
        optimizer.step()
        return float(loss)

    return step


def clipped(model: Any, folder: Path) -> Step:
    optimizer = AdamW(model.parameters(), lr=0.05, foreach=True)
    return _plain(model, optimizer, lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True))


def fused(model: Any, folder: Path) -> Step:
    return _plain(model, AdamW(model.parameters(), lr=0.05, fused=True))


def accumulated(model: Any, folder: Path) -> Step:
    optimizer = SGD(model.parameters(), lr=0.05)

    def step(x: Tensor) -> float:
        losses = [model(x * scale)["loss"] / 2 for scale in (1, 2)]
        for loss in losses:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(sum(losses))

    return step


def scaled(model: Any, folder: Path) -> Step:
    optimizer, scaler = SGD(model.parameters(), lr=0.05), torch.amp.GradScaler("cpu")

    def step(x: Tensor) -> float:
        optimizer.zero_grad()
        loss = model(x)["loss"]
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return float(loss)

    return step


def averaged(model: Any, folder: Path) -> Step:
    train = _plain(model, SGD(model.parameters(), lr=0.05))
    mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def step(x: Tensor) -> float:
        train(x)
        mean.update_parameters(model)
        with torch.no_grad():
            return float(mean.eval()(x)["loss"])

    return step


def reestimated(model: Any, folder: Path) -> Step:
    train = _plain(model, SGD(model.parameters(), lr=0.05))
    mean = AveragedModel(model)

    def step(x: Tensor) -> float:
        loss = train(x)
        mean.update_parameters(model)
        update_bn([x, x.cos(), x * 2], mean)
        with torch.no_grad():
            return loss + float(mean.eval()(x)["loss"])

    return step


def tensor_rate(model: Any, folder: Path) -> Step:
    rate = torch.tensor(0.05)
    return _plain(model, AdamW(model.parameters(), lr=rate, foreach=False))


def copied(model: Any, folder: Path) -> Step:
    train = _plain(model, SGD(model.parameters(), lr=0.05))
    teacher = copy.deepcopy(model).requires_grad_(False)

    def step(x: Tensor) -> float:
        train(x)
        with torch.no_grad():
            for mine, its in zip(teacher.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 0.1)
            return float(teacher(x)["loss"])

    return step


def checkpointed(model: Any, folder: Path) -> Step:
    optimizer = AdamW(model.parameters(), lr=0.05)
    train = _plain(model, optimizer)
    number = iter(range(100))

    def step(x: Tensor) -> float:
        loss = train(x)
        path = folder / type(model).__name__ / str(id(model)) / str(next(number))
        weights, moments = get_state_dict(model, optimizer)
        distributed_checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id=path, no_dist=True)
        train(x)  # undone by what is loaded
        weights, moments = get_state_dict(model, optimizer)
        loaded = {"model": weights, "optimizer": moments}
        distributed_checkpoint.load(loaded, checkpoint_id=path, no_dist=True)
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        return loss

    return step


def accelerated(model: Any, folder: Path, precision: str = "no") -> Step:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(mixed_precision=precision, cpu=True)
    wrapped, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.05, momentum=0.9))

    def step(x: Tensor) -> float:
        with accelerator.accumulate(wrapped):
            loss = wrapped(x)["loss"]
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        assert accelerator.unwrap_model(wrapped) is model
        accelerator.save_state(str(folder / "state"))
        accelerator.load_state(str(folder / "state"))
        accelerator.save_model(wrapped, str(folder / "weights"))
        return float(loss)

    return step


def accelerated_bf16(model: Any, folder: Path) -> Step:
    return accelerated(model, folder, "bf16")


def autocast(model: Any, folder: Path) -> Step:
    train = _plain(model, SGD(model.parameters(), lr=0.05))

    def step(x: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return train(x)

    return step


RECIPES: list[Recipe] = [
    clipped,
    fused,
    accumulated,
    scaled,
    averaged,
    reestimated,
    tensor_rate,
    copied,
    checkpointed,
    accelerated,
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """The bundle, or the one that was built under autocast."""
    folder = tmp_path_factory.mktemp("recipes")

    def build(cast: bool) -> Path:
        path = folder / f"{cast}.aotpack"
        if not path.exists():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
                aotpack.build(Model(), (torch.randn(6, 3),), out=path, targets=("portable",))
        return path

    return build


def _losses(model: nn.Module, recipe: Recipe, folder: Path) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    step = recipe(model, folder)
    return [step(torch.randn(6, 3, generator=generator)) for _ in range(4)]


def _compare(path: Path, recipe: Recipe, folder: Path, tolerance: float) -> None:
    bundle, eager = aotpack_loader.load(path), Model()
    eager.load_state_dict(bundle.state_dict())
    expected = _losses(eager, recipe, folder)
    found = _losses(bundle, recipe, folder)
    assert len(set(expected)) > 1
    assert found == pytest.approx(expected, rel=tolerance)
    torch.testing.assert_close(bundle.state_dict(), eager.state_dict(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("recipe", RECIPES)
def test_losses_and_state_are_those_of_eager(built: Callable[[bool], Path], tmp_path: Path, recipe: Recipe) -> None:
    _compare(built(False), recipe, tmp_path, 1e-5)


@pytest.mark.parametrize("recipe", [autocast, accelerated_bf16])
def test_in_mixed_precision_too(built: Callable[[bool], Path], tmp_path: Path, recipe: Recipe) -> None:
    _compare(built(True), recipe, tmp_path, 1e-2)


def test_a_bundle_without_autocast_says_so(built: Callable[[bool], Path], tmp_path: Path) -> None:
    with pytest.raises(aotpack_loader.AotpackError, match="built without autocast"):
        _losses(aotpack_loader.load(built(False)), accelerated_bf16, tmp_path)

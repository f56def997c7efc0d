"""A bundle's optimizer in the tools that train: each takes the steps of a plain loop with the same optimizer of torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import aotpack
import aotpack_loader

STEPS = 4
X, LABELS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Classifier]:
    model = Classifier()
    out = tmp_path_factory.mktemp("bundle") / "classifier.aotpack"
    aotpack.build(model, (X, LABELS), out=out, targets=("portable",), optimizer=adamw)
    return out, model


Loaded = tuple[nn.Module, torch.optim.Optimizer]


@pytest.fixture
def load(bundle: tuple[Path, Classifier]) -> Callable[[], Loaded]:
    def loaded() -> Loaded:
        module = aotpack_loader.load(bundle[0])
        return module, module.aotpack.optimizer()

    return loaded


def expected(bundle: tuple[Path, Classifier], steps: int = STEPS) -> torch.Tensor:
    """The weight after a plain loop in eager."""
    model = copy.deepcopy(bundle[1])
    optimizer = adamw(model)
    for _ in range(steps):
        model(X, LABELS)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.layer.weight


def test_accelerate(bundle: tuple[Path, Classifier], load: Callable[[], Loaded], tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed; scripts/setup does it")
    accelerator = accelerate.Accelerator(cpu=True)
    module, optimizer = load()
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    model, prepared, scheduler = accelerator.prepare(module, optimizer, schedule)
    for _ in range(STEPS):
        accelerator.backward(model(X, LABELS)["loss"])
        prepared.step()
        scheduler.step()
        prepared.zero_grad()
    assert torch.equal(module.get_parameter("layer.weight"), expected(bundle))
    accelerator.save_state(str(tmp_path / "state"))
    accelerator.load_state(str(tmp_path / "state"))


def test_lightning(bundle: tuple[Path, Classifier], load: Callable[[], Loaded], tmp_path: Path) -> None:
    lightning = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed; scripts/setup does it")
    module, optimizer = load()

    class Task(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss: torch.Tensor = self.module(*batch)["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_steps=STEPS, accelerator="cpu", default_root_dir=str(tmp_path), **quiet)
    trainer.fit(Task(), torch.utils.data.DataLoader([(X, LABELS)] * STEPS, batch_size=None))
    assert torch.equal(module.get_parameter("layer.weight"), expected(bundle))


def test_trainer_stops_and_resumes(bundle: tuple[Path, Classifier], load: Callable[[], Loaded], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed; scripts/setup does it")
    examples = [{"x": x, "labels": label} for x, label in zip(X, LABELS, strict=True)] * STEPS

    class Ordered(transformers.Trainer):  # type: ignore[misc, name-defined]
        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            return torch.utils.data.SequentialSampler(examples)

    def train(steps: int, resumed: str | None) -> nn.Module:
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            max_steps=steps,
            per_device_train_batch_size=4,
            max_grad_norm=0,
            save_steps=2,
            report_to=[],
            use_cpu=True,
        )
        module, optimizer = load()
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        Ordered(module, arguments, train_dataset=examples, optimizers=(optimizer, schedule)).train(resumed)
        return module

    train(2, None)
    module = train(STEPS, str(tmp_path / "checkpoint-2"))
    assert torch.equal(module.get_parameter("layer.weight"), expected(bundle))


def test_gradient_scaler(bundle: tuple[Path, Classifier], load: Callable[[], Loaded]) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    module, optimizer = load()
    for _ in range(STEPS):
        scaler.scale(module(X, LABELS)["loss"]).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert torch.equal(module.get_parameter("layer.weight"), expected(bundle))


def test_state_of_distributed_checkpoints(load: Callable[[], Loaded]) -> None:
    module, optimizer = load()
    module(X, LABELS)["loss"].backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(module, optimizer)
    other, its_optimizer = load()
    set_state_dict(other, its_optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    for p, q in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close((p, optimizer.state[p]), (q, its_optimizer.state[q]), rtol=0, atol=0)

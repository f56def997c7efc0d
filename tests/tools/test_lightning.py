"""Lightning trains a loaded bundle as it trains the original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import aotpack
import aotpack_loader

pytestmark = pytest.mark.filterwarnings("ignore")
BATCHES = [(torch.randn(4, 6, generator=torch.Generator().manual_seed(step)), torch.arange(4) % 3) for step in range(3)]


class Model(nn.Module):
    """With BatchNorm: Lightning changes between train and eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.fixture(scope="module")
def fit() -> Callable[[nn.Module, str], list[float]]:
    """Train and validate a model in a precision; the losses."""
    lightning = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed; scripts/setup does it")

    class Task(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model
            self.losses: list[float] = []

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            loss = nn.functional.cross_entropy(self.model(batch[0]).float(), batch[1])
            self.losses.append(loss.item())
            return loss

        validation_step = training_step

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def run(model: nn.Module, precision: str) -> list[float]:
        task = Task(model)
        off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        options: dict[str, Any] = {"accelerator": "cpu", "max_epochs": 2, "gradient_clip_val": 0.5, **dict.fromkeys(off, False)}
        data = [DataLoader(batches, batch_size=None) for batches in (BATCHES, BATCHES[:1])]  # type: ignore[arg-type]
        lightning.Trainer(precision=precision, **options).fit(task, *data)
        return task.losses

    return run


def build(out: Path, cast: bool) -> Path:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
        aotpack.build(Model(), BATCHES[0][:1], out=out, targets=("portable",))
    return out


@pytest.mark.parametrize(("precision", "tolerance"), [("32-true", 1e-5), ("bf16-mixed", 1e-2)])
def test_losses_and_state_are_those_of_eager(
    fit: Callable[[nn.Module, str], list[float]], tmp_path: Path, precision: str, tolerance: float
) -> None:
    bundle, eager = aotpack_loader.load(build(tmp_path / "model.aotpack", precision == "bf16-mixed")), Model()
    eager.load_state_dict(bundle.state_dict())
    expected = fit(eager, precision)
    assert len(set(expected)) == 2 * len(BATCHES) + 2 + 1  # each epoch validates too, and one validation comes before
    assert fit(bundle, precision) == pytest.approx(expected, rel=tolerance)
    torch.testing.assert_close(bundle.state_dict(), eager.state_dict(), rtol=tolerance, atol=tolerance)


def test_a_bundle_without_autocast_says_so(fit: Callable[[nn.Module, str], list[float]], tmp_path: Path) -> None:
    with pytest.raises(aotpack_loader.AotpackError, match="built without autocast"):
        fit(aotpack_loader.load(build(tmp_path / "model.aotpack", False)), "bf16-mixed")

"""Data and a Trainer that several tests use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Data = list[dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, 40, (8,), generator=generator) for _ in range(8)]
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row.clone()} for row in rows]


@pytest.fixture
def trainer(data: Data, tmp_path: Path) -> Callable[..., Any]:
    from transformers import Trainer, TrainingArguments

    def make(model: Any, name: str, **options: Any) -> Trainer:
        arguments = TrainingArguments(
            str(tmp_path / name), per_device_train_batch_size=4, per_device_eval_batch_size=4, max_steps=4, logging_steps=1,
            seed=1, save_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=1e-2,
            dataloader_pin_memory=False, **options,
        )  # fmt: skip
        return Trainer(model, arguments, train_dataset=data, eval_dataset=data)

    return make


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

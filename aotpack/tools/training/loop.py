"""The training loop of ``aotpack train``. It goes on from the checkpoint in its folder, bit for bit."""

from __future__ import annotations

import math
import os
import random
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from aotpack_loader.checkpoints.folder import DOCUMENT
from aotpack_loader.errors import AotpackError, Problem
from aotpack_loader.module.program import LoadedProgram
from aotpack_loader.optimizer.loss import loss_of
from aotpack_loader.replay import device_of, moved

from ..measure.steps import call_as_built
from .data import Data, opened
from .events import METRICS, Metrics

CHECKPOINT = "checkpoint"
Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Asked:
    """What a run was asked for: the options of the command, which has the defaults. ``optimizer`` empty: the only one."""

    bundle: Path
    data: str
    out: Path
    epochs: int
    checkpoint_every: int
    batch_size: int | None
    steps_per_epoch: int | None
    seed: int
    lr: float | None
    schedule: Schedule
    warmup: int
    clip_grad_norm: float | None
    optimizer: str
    log_every: int


@dataclass(frozen=True)
class State:
    """A run after a step. ``total`` is the number of steps, None if only the data knows. ``memory`` is in bytes."""

    step: int
    total: int | None
    epoch: int
    epochs: int
    loss: float
    lr: float
    steps_per_second: float
    memory: int


class Observer(Protocol):
    """Is told about the progress of a run."""

    def begin(self, step: int, total: int | None, backend: str) -> None:
        """The run begins, or goes on after ``step``."""

    def after(self, state: State) -> None:
        """A step was taken."""


@dataclass(frozen=True)
class TrainReport:
    """What a run did. ``resumed`` is the step that it went on from, ``steps`` counts all, ``seconds`` are of this process."""

    out: Path
    backend: str
    epochs: int
    steps: int
    resumed: int
    loss: float | None
    seconds: float
    checkpoint: Path
    metrics: Path


def train(asked: Asked, model: LoadedProgram, observer: Observer) -> TrainReport:
    """Train ``model`` as it was asked for.

    Raises:
        AotpackError: the bundle has no optimizer, data or results do not fit, or the run in the folder is another one.
    """
    run = _Run(asked, model)
    start = time.perf_counter()
    with Metrics(asked.out, run.step) as metrics:
        observer.begin(run.step, run.total, model.aotpack.backend)
        loss = run.go(metrics, observer)
    return TrainReport(
        out=asked.out,
        backend=model.aotpack.backend,
        epochs=asked.epochs,
        steps=run.step,
        resumed=run.resumed,
        loss=loss,
        seconds=time.perf_counter() - start,
        checkpoint=asked.out / CHECKPOINT,
        metrics=asked.out / METRICS,
    )


class _Run:
    """A run: the model, its optimizer, and how far it is."""

    def __init__(self, asked: Asked, model: LoadedProgram) -> None:
        method = model.aotpack.program.methods.get("train")
        if method is None:
            raise AotpackError("This bundle has no train method, so it cannot be trained.")
        self._asked, self._model = asked, model.train()
        self._call, self._device = call_as_built(model, "train"), device_of(model)
        numbers: dict[str, Any] = {} if asked.lr is None else {"lr": asked.lr}
        name = _optimizer_name(asked.optimizer, model)
        self._optimizer = model.aotpack.optimizer(name, clip_grad_norm=asked.clip_grad_norm, **numbers)
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        self._data: Data = opened(
            asked.data, method, batch_size=asked.batch_size, seed=asked.seed, steps_per_epoch=asked.steps_per_epoch
        )
        each = self._data.steps_per_epoch
        self.total = None if each is None else each * asked.epochs
        if self.total is None and asked.schedule != "constant":
            raise AotpackError(f"The schedule {asked.schedule} needs the number of steps.", hint="Set --steps-per-epoch.")
        self._settings = {
            "seed": asked.seed,
            "learning rates": [float(rate) for rate in self._rates],
            "schedule": asked.schedule,
            "warmup": asked.warmup,
            "clip_grad_norm": asked.clip_grad_norm,
            **self._data.describe(),
            **({} if asked.schedule == "constant" else {"epochs": asked.epochs}),
        }
        torch.manual_seed(asked.seed)
        random.seed(asked.seed)
        asked.out.mkdir(parents=True, exist_ok=True)
        self.step = self._epoch = self._position = self._saved = 0
        if (asked.out / CHECKPOINT / DOCUMENT).exists():
            self._restore(asked.out / CHECKPOINT)
        self.resumed = self.step

    def _restore(self, path: Path) -> None:
        restored = self._model.aotpack.load_checkpoint(path, optimizer=self._optimizer)
        before = restored.extra.get("settings", {})
        names = {**before, **self._settings}
        problems = [
            Problem(name, f"is {self._settings.get(name)}, the run in the folder has {before.get(name)}")
            for name in names
            if before.get(name) != self._settings.get(name)
        ]
        if problems:
            hint = "Give the same options, or another folder with -o."
            raise AotpackError(f"{path} is the checkpoint of a run with other settings.", problems, hint=hint)
        self.step = self._saved = restored.step
        self._epoch, self._position = restored.extra["epoch"], restored.extra["position"]

    def go(self, metrics: Metrics, observer: Observer) -> float | None:
        """Take the steps that are left. Returns the last loss."""
        loss: float | None = None
        last, at = time.perf_counter(), self.step
        for epoch in range(self._epoch, self._asked.epochs):
            for args, kwargs in self._data.batches(epoch, self._position):
                rate = self._set_rates()
                loss = self._take(args, kwargs)
                self._position += 1
                if self.step % self._asked.log_every == 0:
                    now = time.perf_counter()
                    speed, last, at = (self.step - at) / (now - last), now, self.step
                    state = State(self.step, self.total, epoch + 1, self._asked.epochs, loss, rate, speed, _memory())
                    values = {"loss": loss, "lr": rate, "steps_per_second": speed, "memory": state.memory}
                    metrics.write(self.step, values, epoch=epoch + 1)
                    observer.after(state)
                if self.step % self._asked.checkpoint_every == 0:
                    self._save(epoch)
            if not self._position:
                raise AotpackError(f"{self._asked.data} has no batch in epoch {epoch + 1}.")
            if epoch + 1 < self._asked.epochs:
                self._position = 0
        if self._saved != self.step:
            self._save(self._asked.epochs - 1)
        return loss

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        """Take a step, and return its loss."""
        args, kwargs = moved((args, kwargs), self._device)
        loss = loss_of(self._call(*args, **kwargs))
        value = float(loss.detach())
        if not math.isfinite(value):
            hint = f"The last checkpoint is of step {self._saved}. Try a lower --lr or a --warmup."
            raise AotpackError(f"The loss is {value} at step {self.step + 1}.", hint=hint)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        return value

    def _set_rates(self) -> float:
        """Set the learning rates of the next step. Returns that of the first group."""
        factor = factor_of(self._asked.schedule, self.step, self.total, self._asked.warmup)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        return float(self._rates[0] * factor)

    def _save(self, epoch: int) -> None:
        extra = {"epoch": epoch, "position": self._position, "settings": self._settings}
        path = self._asked.out / CHECKPOINT
        self._model.aotpack.save_checkpoint(path, optimizer=self._optimizer, step=self.step, extra=extra)
        self._saved = self.step


def factor_of(schedule: Schedule, step: int, total: int | None, warmup: int) -> float:
    """The factor of the learning rate for the step after ``step``: it rises over ``warmup`` steps, then falls until ``total``."""
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant" or total is None:
        return 1.0
    done = (step - warmup) / max(total - warmup, 1)
    return 1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2


def _optimizer_name(asked: str, model: LoadedProgram) -> str:
    """The optimizer to train with. With several in the bundle one must be named."""
    known = [*model.aotpack.program.optimizers]
    if not asked and len(known) > 1:
        raise AotpackError(f"The bundle has several optimizers: {', '.join(known)}.", hint="Choose one with --optimizer.")
    return asked or (known[0] if known else "optimizer")


def _memory() -> int:
    """The resident memory of this process, in bytes."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

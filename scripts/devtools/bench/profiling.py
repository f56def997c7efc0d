"""Measures what profiling costs: a step under ``aotpack profile``, and the events of compiled code without a profiler.

    .venv/bin/python -m devtools.bench.profiling            prints, and writes scripts/bench/results/profile.json

Steps with and without events are from two builds of one model. They take turns in one process, so
what else the machine does disturbs both alike.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import aotpack
from aotpack.measure.profile import profile_bundle
from aotpack.measure.steps import StepInputs, call_as_built, inputs_of, loss_of
from aotpack.model.entry import load_entry

from ..machine import provenance
from ..paths import RESULTS, ROOT

MODELS = {
    "tiny": ROOT / "scripts/devtools/bench/models/tiny.py",
    "digits": ROOT / "examples/digits/model.py",
    "GPT, 4 layers": ROOT / "examples/gpt/model.py",
}
ROUNDS = 200
SECONDS = 0.02
"""The time that the steps of one kind take in a round, at least one step."""


def main() -> None:
    torch.set_num_threads(1)
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in MODELS.items():
            rows[name] = _measured(path, Path(folder) / name)
            print(name, json.dumps(rows[name]))
    result = {"rounds": ROUNDS, "models": rows} | provenance(threads=1)
    (RESULTS / "profile.json").write_text(json.dumps(result, indent=1) + "\n")


def _measured(path: Path, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    entry = load_entry(str(path))
    build = {"with events": contextlib.nullcontext(), "without": mock.patch("aotpack._torch.inductor.kernel_events", _no_events)}
    bundles = {kind: folder / f"{kind}.aotpack" for kind in build}
    for kind, context in build.items():
        with context:
            aotpack.build(entry.model, entry.args, entry.kwargs, out=bundles[kind], targets=("cpu", "portable"), cache=False)
    found: dict[str, Any] = {"events off": _events_off(bundles)}
    for backend in ("cpu", "portable"):
        profile, _ = profile_bundle(bundles["with events"], backend=backend, steps=20, warmup=5)
        seconds = {"step": profile.plain_step, "profiled": profile.step}
        found[backend] = seconds | {"ratio": round(profile.step / profile.plain_step, 3), "kernels": len(profile.by_kernel())}
    return found


def _no_events(*_: object) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _events_off(bundles: dict[str, Path]) -> dict[str, Any]:
    """The processor's time of a step with and without events in the code: the least and the median of all rounds."""
    steps = {kind: _step(path) for kind, path in bundles.items()}
    count = max(1, int(SECONDS / _time(steps["without"], 10)))
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for number in range(ROUNDS):
        for kind in steps if number % 2 else reversed(steps):
            times[kind].append(_time(steps[kind], count))
    least = {kind: min(found) for kind, found in times.items()}
    medians = {kind: statistics.median(found) for kind, found in times.items()}
    ratios = {"ratio": least["with events"] / least["without"], "ratio of medians": medians["with events"] / medians["without"]}
    return {"least": least, "median": medians} | {name: round(ratio, 4) for name, ratio in ratios.items()}


def _step(path: Path) -> Callable[[], None]:
    model = aotpack.load(path, backend="cpu")
    inputs: StepInputs = inputs_of(path, "train", 0)
    call, parameters = call_as_built(model, "train"), list(model.parameters())

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        loss_of(call(*inputs.args, **inputs.kwargs)).backward()

    return step


def _time(step: Callable[[], None], count: int) -> float:
    step()
    start = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - start) / count


if __name__ == "__main__":
    main()

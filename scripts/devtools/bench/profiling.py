"""Measures what profiling costs: a step under ``aotpack profile``, and the events of compiled code without a profiler.

    python -m devtools.bench.profiling                     prints, and writes scripts/bench/results/profile.json
    python -m devtools.bench.profiling --bundles FOLDER    builds only the bundles that are not in FOLDER yet
    python -m devtools.bench.profiling --bundles FOLDER --build    builds them, and measures nothing

Steps with and without events are from two builds of one model. They take turns in one process, so
what else the machine does disturbs both alike.
"""

from __future__ import annotations

import argparse
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
from aotpack.tools.measure.profile import profile_bundle
from aotpack.tools.measure.steps import StepInputs, call_as_built, inputs_of, loss_of

from ..inspect_pages import NETWORKS, build
from ..machine import provenance
from ..paths import RESULTS

MODELS = {"tiny": ("scripts/devtools/bench/models/tiny.py", {})} | NETWORKS
WITHOUT_EVENTS = ("tiny", "digits")
"""Models with steps so short that events without a profiler could be felt."""
BACKENDS = ("cpu", "portable")
ROUNDS = 200
SECONDS = 0.02
"""The time that the steps of one kind take in a round, at least one step."""
PROFILED = 12.0
"""About how many seconds a profile of one backend takes. It has 5 to 40 steps without the profiler, and as many with it."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="profiling", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bundles", type=Path, metavar="FOLDER", help="keep the bundles in this folder")
    parser.add_argument("--build", action="store_true", help="only build the bundles")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.bundles or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name in MODELS:
            bundles = _built(name, folder)
            if not given.build:
                rows[name] = _measured(name, bundles)
                print(name, json.dumps(rows[name]), flush=True)
                result = {"rounds": ROUNDS, "models": rows} | provenance(threads=1)
                (RESULTS / "profile.json").write_text(json.dumps(result, indent=1) + "\n")


def _built(name: str, folder: Path) -> dict[str, Path]:
    """The bundles of a model, which are built where they are not there."""
    path, options = MODELS[name]
    kinds = {"with events": contextlib.nullcontext()}
    if name in WITHOUT_EVENTS:
        kinds["without"] = mock.patch("aotpack._torch.inductor.lowering.kernel_events", _no_events)
    bundles = {kind: folder / f"{name} {kind}.aotpack".replace(" ", "-") for kind in kinds}
    for kind, context in kinds.items():
        if not bundles[kind].exists():
            with context:
                build(path, options, bundles[kind], targets=BACKENDS, cache=False)
    return bundles


def _measured(name: str, bundles: dict[str, Path]) -> dict[str, Any]:
    found: dict[str, Any] = {"events off": _events_off(bundles)} if name in WITHOUT_EVENTS else {}
    for backend in BACKENDS:
        once, _ = profile_bundle(bundles["with events"], backend=backend, steps=1, warmup=1)
        steps = min(40, max(5, round(PROFILED / 2 / once.plain_step)))
        profile, _ = profile_bundle(bundles["with events"], backend=backend, steps=steps, warmup=2)
        seconds = {"steps": steps, "step": profile.plain_step, "profiled": profile.step}
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

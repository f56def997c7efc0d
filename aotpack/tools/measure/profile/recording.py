"""Runs steps of a bundle under ``torch.profiler``, and reads the trace that it writes."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch.profiler import ProfilerActivity, record_function

from aotpack_loader.errors import AotpackError
from aotpack_loader.format.events import Event, parse_event
from aotpack_loader.module.program import LoadedProgram

from ..steps import StepInputs, call_as_built, loss_of

T = TypeVar("T")

STEP: Final = "aotpack step"
PARTS: Final = {"aotpack forward": "forward", "aotpack backward": "backward", "aotpack update": "update"}
"""Our own events around the parts of a step: ``update`` is that of the bundle's optimizers."""


@dataclass(frozen=True)
class Span:
    """An event: ``start`` and ``time`` in seconds."""

    start: float
    time: float

    @property
    def end(self) -> float:
        return self.start + self.time


@dataclass(frozen=True)
class KernelSpan:
    """One run of a kernel or operator of the bundle."""

    span: Span
    event: Event


@dataclass(frozen=True)
class Change:
    """A change of the allocated memory: ``size`` bytes at ``address``, negative if they are freed."""

    at: float
    address: int
    size: int


@dataclass(frozen=True)
class StepTrace:
    """One step: the spans of its parts by name, its kernels and its changes of memory, each in order of time."""

    parts: dict[str, Span]
    kernels: list[KernelSpan]
    changes: list[Change]

    @property
    def time(self) -> float:
        """The time of its parts, in seconds."""
        return sum(span.time for span in self.parts.values())


@dataclass(frozen=True)
class Recording:
    """Steps as the profiler saw them.

    ``plain_step`` is the time of a step without a profiler, in seconds. Only the faster half of the
    steps counts, there and in ``steps``: others were disturbed. ``trace`` is the document in the form
    of Chrome's traces, with all steps.
    """

    plain_step: float
    steps: list[StepTrace]
    trace: dict[str, Any]


def record(model: LoadedProgram, method: str, inputs: StepInputs, *, steps: int, warmup: int) -> Recording:
    """Run ``steps`` steps without and then with a profiler. ``warmup`` steps come before each."""
    step = _step(model, method, inputs)
    plain = [_timed(step) for _ in range(warmup + steps)][warmup:]
    schedule = torch.profiler.schedule(wait=0, warmup=warmup, active=steps, repeat=1)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True, schedule=schedule) as profiler:
        for _ in range(warmup + steps):
            step()
            profiler.step()
    trace = trace_of(profiler)
    found = read_steps(trace["traceEvents"])
    if not found:
        raise AotpackError("torch.profiler recorded no step.", hint="Run again without another profiler in this process.")
    return Recording(statistics.fmean(_faster_half(plain, float)), _faster_half(found, lambda step: step.time), trace)


def trace_of(profiler: torch.profiler.profile) -> dict[str, Any]:
    """What a profiler recorded, in the form of Chrome's traces."""
    with tempfile.TemporaryDirectory(prefix="aotpack-profile-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return trace


def _step(model: LoadedProgram, method: str, inputs: StepInputs) -> Callable[[], None]:
    call, parameters, training = call_as_built(model, method), list(model.parameters()), method == "train"
    optimizers = [model.aotpack.optimizer(name) for name in model.aotpack.program.optimizers] if training else []

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        with torch.set_grad_enabled(training), record_function(STEP):
            with record_function("aotpack forward"):
                outputs = call(*inputs.args, **inputs.kwargs)
            if training:
                loss = loss_of(outputs)
                with record_function("aotpack backward"):
                    loss.backward()
                if stepped := [each for each in optimizers if _has_gradients(each)]:
                    with record_function("aotpack update"):
                        for optimizer in stepped:
                            optimizer.step()

    return step


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def _faster_half(items: Sequence[T], time_of: Callable[[T], float]) -> list[T]:
    return sorted(items, key=time_of)[: (len(items) + 1) // 2]


def _timed(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def read_steps(events: list[dict[str, Any]]) -> list[StepTrace]:
    """Read the steps of a trace. Times in it are in microseconds."""
    ordered = sorted((event for event in events if "ts" in event), key=lambda event: float(event["ts"]))
    complete = [
        (Span(event["ts"] * 1e-6, event["dur"] * 1e-6), str(event["name"])) for event in ordered if event.get("ph") == "X"
    ]
    changes = [
        Change(event["ts"] * 1e-6, event["args"]["Addr"], event["args"]["Bytes"])
        for event in ordered
        if event.get("name") == "[memory]" and event["args"].get("Device Type") == 0
    ]
    named = [(span, event) for span, name in complete if (event := parse_event(name))]
    found = []
    for whole in [span for span, name in complete if name == STEP]:
        parts = {PARTS[name]: span for span, name in complete if name in PARTS and _within(span.start, whole)}
        kernels = [KernelSpan(span, event) for span, event in named if _within(span.start, whole)]
        found.append(StepTrace(parts, kernels, [change for change in changes if _within(change.at, whole)]))
    return found


def _within(at: float, span: Span) -> bool:
    return span.start <= at <= span.end

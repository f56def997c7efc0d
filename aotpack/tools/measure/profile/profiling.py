"""Profiles a bundle: runs it, and sums time and memory by module, by source line and by kernel."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import aotpack_loader
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AotpackError
from aotpack_loader.format.events import ROOT, Event

from ..steps import inputs_of
from . import nodes as origins_of
from .chrome_trace import Trace
from .memory import outermost, peak_of
from .nodes import PARTS, GraphNodes, Part
from .recording import StepTrace, record

OPTIMIZER = "(optimizer)"
"""The module of what an optimizer computes."""
OUTSIDE = "(outside kernels)"
UNKNOWN = "(unknown)"


@dataclass(frozen=True)
class Cell:
    """What one kernel costs for one module and source line: seconds and bytes of one step.

    ``peak`` are bytes that it holds when the step holds most. ``saved`` are bytes that the forward
    keeps for the backward. ``code`` is the kernel or operator.
    """

    part: Part
    module: str
    line: str
    code: str
    time: float = 0.0
    peak: float = 0.0
    saved: float = 0.0


@dataclass(frozen=True)
class Row:
    """The sums of some cells: seconds of each part of the step, and bytes."""

    name: str
    forward: float
    backward: float
    update: float
    saved: int
    peak: int

    @property
    def time(self) -> float:
        return self.forward + self.backward + self.update


@dataclass(frozen=True)
class Profile:
    """The profile of a method's step.

    ``plain_step`` is the time of a step without the profiler, ``step`` with it, in seconds. Both are
    means of the faster half of the steps. ``forward``, ``backward`` and ``update`` are the times of its
    parts, with the profiler, and add up to ``step``. The cells add up to these. The update is that of the
    bundle's optimizers, if it has any. ``peak`` are the bytes that a step allocates at most.
    ``located``: the bundle says where nodes come from. ``named``: its code announces its kernels.
    """

    bundle: str
    digest: str
    method: str
    backend: str
    inputs: str
    steps: int
    threads: int
    torch: str
    plain_step: float
    step: float
    forward: float
    backward: float
    update: float
    peak: int
    located: bool
    named: bool
    cells: list[Cell]

    @property
    def saved(self) -> int:
        return round(sum(cell.saved for cell in self.cells))

    def by_module(self, depth: int | None = None) -> list[Row]:
        """A row for each module, the costliest first. ``depth``: modules further inside count as the one above."""

        def name(cell: Cell) -> str:
            return ".".join(cell.module.split(".")[:depth]) or ROOT if cell.code != OUTSIDE else OUTSIDE

        return _rows(self.cells, name)

    def by_line(self) -> list[Row]:
        """A row for each source line, the costliest first."""
        return _rows(self.cells, lambda cell: cell.line or UNKNOWN if cell.code != OUTSIDE else OUTSIDE)

    def by_kernel(self) -> list[Row]:
        """A row for each kernel or operator of each part, the costliest first."""
        return _rows(self.cells, lambda cell: cell.code)


def profile_bundle(
    path: Path,
    *,
    backend: str | None = None,
    steps: int = 10,
    warmup: int = 3,
    threads: int = 0,
    seed: int = 0,
    trust: str | Collection[str] | None = None,
    subclasses: Sequence[type] = (),
) -> tuple[Profile, Trace]:
    """Run a bundle's training step, or its inference if it cannot train, and profile it.

    Args:
        path: the bundle.
        backend: the target to run; None: the best one.
        steps: the number of steps, without the profiler and with it. The faster half counts.
        warmup: the number of steps before those.
        threads: the number of threads; 0: torch's choice.
        seed: the seed of torch, and of random inputs.
        trust: whether the bundle is trusted, as :func:`aotpack.load` takes it.
        subclasses: the tensor subclasses that the bundle requires.

    Raises:
        AotpackError: the bundle cannot be loaded or run, or the target is for XLA.
    """
    with Bundle.open(path) as bundle:
        _refuse_xla(bundle, backend)
    if threads:
        torch.set_num_threads(threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", aotpack_loader.BackendWarning)  # the profile names the backend
        model = aotpack_loader.load(path, backend=backend, trust=trust, subclasses=subclasses)
    method = _method_of_steps(model.aotpack.methods)
    model.train(method == "train")
    torch.manual_seed(seed)
    inputs = inputs_of(path, method, seed, subclasses)
    recording = record(model, method, inputs, steps=steps, warmup=warmup)
    with Bundle.open(path) as opened:
        bundle = opened.for_target(model.aotpack.backend)
        steps_of_optimizers = [name for name, each in bundle.program.methods.items() if each.role == "step"]
        graphs = origins_of.graphs_of(bundle, [method, *steps_of_optimizers])
        saved = origins_of.saved_by_origin(bundle, method)
        located = bundle.origins() is not None
    recorded = [replace(step, kernels=outermost(step.kernels)) for step in recording.steps]
    times = {part: statistics.fmean(_span(step, part) for step in recorded) for part in PARTS}
    peak, peaks = _peaks(recorded[-1], graphs)
    held = [Cell("forward", origin.module, origin.line, "", saved=size) for origin, size in saved]
    profile = Profile(
        bundle=path.name,
        digest=model.aotpack.digest,
        method=method,
        backend=model.aotpack.backend,
        inputs=inputs.source,
        steps=steps,
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        plain_step=recording.plain_step,
        step=statistics.fmean(step.time for step in recorded),
        forward=times["forward"],
        backward=times["backward"],
        update=times["update"],
        peak=peak,
        located=located,
        named=any(step.kernels for step in recorded),
        cells=_merged([*_timed(recorded, graphs, times), *peaks, *held]),
    )
    return profile, Trace(recording, graphs)


def _refuse_xla(bundle: Bundle, backend: str | None) -> None:
    """Refuse a target whose kernels torch's profiler does not see."""
    for name, target in bundle.targets.items():
        if backend in (name, name.partition(":")[0]) and target.kind == "xla":
            raise AotpackError(
                f"The target {name} is for XLA, whose kernels torch's profiler does not see.",
                hint="Profile another target (--backend portable), or use torch_xla.debug.profiler.",
            )


def _method_of_steps(methods: Collection[str]) -> str:
    """The method whose steps are profiled."""
    for method in ("train", "infer"):
        if method in methods:
            return method
    raise AotpackError("This bundle has neither a train nor an infer method, so there is no step to profile.")


def _span(step: StepTrace, part: str) -> float:
    return step.parts[part].time if part in step.parts else 0.0


def _shares(event: Event, graphs: Mapping[str, GraphNodes]) -> Iterator[tuple[Part, str, str, float]]:
    """The part of the step that an event belongs to, and its modules and lines, each with its share."""
    graph = graphs.get(event.graph, GraphNodes("forward", [], [], []))
    for origin, share in graph.shares(event):
        yield graph.part, OPTIMIZER if graph.part == "update" else origin.module, origin.line, share


def _kernel_cells(step: StepTrace, graphs: dict[str, GraphNodes], steps: int) -> Iterable[Cell]:
    for kernel in step.kernels:
        for part, module, line, share in _shares(kernel.event, graphs):
            yield Cell(part, module, line, kernel.event.code, kernel.span.time * share / steps)


def _timed(steps: list[StepTrace], graphs: dict[str, GraphNodes], times: dict[Part, float]) -> list[Cell]:
    """The mean time of each kernel, and of what runs outside kernels."""
    cells = [cell for step in steps for cell in _kernel_cells(step, graphs, len(steps))]
    return cells + [Cell(part, "", "", OUTSIDE, time) for part, time in _outside(cells, times)]


def _outside(cells: list[Cell], times: dict[Part, float]) -> Iterable[tuple[Part, float]]:
    for part, time in times.items():
        if time:
            yield part, max(0.0, time - _time(cells, part))


def _peaks(step: StepTrace, graphs: dict[str, GraphNodes]) -> tuple[int, list[Cell]]:
    peak = peak_of(step)
    cells = []
    for index, size in peak.kernels.items():
        if index < 0:
            cells.append(Cell("forward", "", "", OUTSIDE, peak=size))
            continue
        event = step.kernels[index].event
        cells += [Cell(part, module, line, event.code, peak=size * share) for part, module, line, share in _shares(event, graphs)]
    return peak.size, cells


def _merged(cells: Iterable[Cell]) -> list[Cell]:
    """One cell for each part, module, line and kernel."""
    found: dict[tuple[Any, ...], Cell] = {}
    for cell in cells:
        key = (cell.part, cell.module, cell.line, cell.code)
        known = found.get(key, Cell(*key))
        found[key] = replace(known, time=known.time + cell.time, peak=known.peak + cell.peak, saved=known.saved + cell.saved)
    return list(found.values())


def _time(cells: Iterable[Cell], part: Part) -> float:
    return sum(cell.time for cell in cells if cell.part == part)


def _rows(cells: Iterable[Cell], name: Callable[[Cell], str]) -> list[Row]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if label := name(cell):
            groups.setdefault(label, []).append(cell)
    rows = [
        Row(
            label,
            _time(group, "forward"),
            _time(group, "backward"),
            _time(group, "update"),
            round(sum(cell.saved for cell in group)),
            round(sum(cell.peak for cell in group)),
        )
        for label, group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.time, -row.saved, row.name))

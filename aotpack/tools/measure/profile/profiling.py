"""Profiles a bundle: runs it, and sums time and memory by module, by source line and by kernel."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

import aotpack_loader
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AotpackError
from aotpack_loader.format.events import ROOT

from ..steps import inputs_of
from . import nodes as origins_of
from .chrome_trace import Trace
from .memory import outermost, peak_of
from .nodes import GraphNodes, Origin
from .recording import StepTrace, record

Half = Literal["forward", "backward"]
OUTSIDE = "(outside kernels)"
UNKNOWN = "(unknown)"


@dataclass(frozen=True)
class Cell:
    """What one kernel costs for one module and source line: seconds and bytes of one step.

    ``peak`` are bytes that it holds when the step holds most. ``saved`` are bytes that the forward
    keeps for the backward. ``code`` is the kernel or operator.
    """

    half: Half
    module: str
    line: str
    code: str
    time: float = 0.0
    peak: float = 0.0
    saved: float = 0.0


@dataclass(frozen=True)
class Row:
    """The sums of some cells: seconds of the forward and of the backward, and bytes."""

    name: str
    forward: float
    backward: float
    saved: int
    peak: int

    @property
    def time(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class Profile:
    """The profile of a method's step.

    ``plain_step`` is the time of a step without the profiler, ``step`` with it, in seconds. Both are
    means of the faster half of the steps. ``forward`` and ``backward`` are the times of its halves,
    with the profiler. The cells add up to these. ``peak`` are the bytes that a step allocates at most.
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
        """A row for each kernel or operator of each half, the costliest first."""
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
        graphs = origins_of.graphs_of(bundle, method)
        saved = origins_of.saved_by_origin(bundle, method)
        located = bundle.origins() is not None
    recorded = [replace(step, kernels=outermost(step.kernels)) for step in recording.steps]
    halves = {half: statistics.fmean(_span(step, half) for step in recorded) for half in ("forward", "backward")}
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
        forward=halves["forward"],
        backward=halves["backward"],
        peak=peak,
        located=located,
        named=any(step.kernels for step in recorded),
        cells=_merged([*_timed(recorded, graphs, halves), *peaks, *held]),
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


def _span(step: StepTrace, half: str) -> float:
    return step.halves[half].time if half in step.halves else 0.0


def _half_of(key: str) -> Half:
    return "backward" if key.split(".")[1:2] == ["backward"] else "forward"


def _graph(graphs: dict[str, GraphNodes], key: str) -> GraphNodes:
    """The graph of an event's key; a part of a graph (``train.forward.2``) has the nodes of the whole graph."""
    return graphs.get(".".join(key.split(".")[:2]), GraphNodes([], [], []))


def _kernel_cells(step: StepTrace, graphs: dict[str, GraphNodes], steps: int) -> Iterable[Cell]:
    for kernel in step.kernels:
        event = kernel.event
        for origin, share in _graph(graphs, event.key).shares(event):
            yield Cell(_half_of(event.key), origin.module, origin.line, event.code, kernel.span.time * share / steps)


def _timed(steps: list[StepTrace], graphs: dict[str, GraphNodes], halves: dict[str, float]) -> list[Cell]:
    """The mean time of each kernel, and of what runs outside kernels."""
    cells = [cell for step in steps for cell in _kernel_cells(step, graphs, len(steps))]
    return cells + [Cell(half, "", "", OUTSIDE, time) for half, time in _outside(cells, halves)]


def _outside(cells: list[Cell], halves: dict[str, float]) -> Iterable[tuple[Half, float]]:
    for half in ("forward", "backward"):
        if halves[half]:
            yield half, max(0.0, halves[half] - sum(cell.time for cell in cells if cell.half == half))


def _peaks(step: StepTrace, graphs: dict[str, GraphNodes]) -> tuple[int, list[Cell]]:
    peak = peak_of(step)
    cells = []
    for index, size in peak.kernels.items():
        if index < 0:
            cells.append(Cell("forward", "", "", OUTSIDE, peak=size))
            continue
        event = step.kernels[index].event
        shares: list[tuple[Origin, float]] = _graph(graphs, event.key).shares(event)
        cells += [Cell(_half_of(event.key), o.module, o.line, event.code, peak=size * share) for o, share in shares]
    return peak.size, cells


def _merged(cells: Iterable[Cell]) -> list[Cell]:
    """One cell for each half, module, line and kernel."""
    found: dict[tuple[Any, ...], Cell] = {}
    for cell in cells:
        key = (cell.half, cell.module, cell.line, cell.code)
        known = found.get(key, Cell(*key))
        found[key] = replace(known, time=known.time + cell.time, peak=known.peak + cell.peak, saved=known.saved + cell.saved)
    return list(found.values())


def _rows(cells: Iterable[Cell], name: Callable[[Cell], str]) -> list[Row]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if label := name(cell):
            groups.setdefault(label, []).append(cell)
    rows = [
        Row(
            label,
            sum(cell.time for cell in group if cell.half == "forward"),
            sum(cell.time for cell in group if cell.half == "backward"),
            round(sum(cell.saved for cell in group)),
            round(sum(cell.peak for cell in group)),
        )
        for label, group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.time, -row.saved, row.name))

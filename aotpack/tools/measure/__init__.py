"""Measures how fast a bundle starts and steps on this machine.

With the model's source, eager and ``torch.compile`` are measured too. Every figure comes from
fresh processes (:mod:`.contender`). The contenders take turns, because the ratios between them are
what counts.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from aotpack_loader.errors import AotpackError, Problem

if TYPE_CHECKING:
    from torch import Tensor

CONTENDER = Path(__file__).with_name("contender.py")
REFERENCE = "torch.compile, warm cache"
_SAMPLED = ("start", "load", "first_step", "peak_memory")
"""Fields of :class:`Figures` with one sample a process."""
_FORGOTTEN = ("PYTHON", "TORCHINDUCTOR")
"""Prefixes of environment variables that a contender does not inherit."""


class _Run(msgspec.Struct, frozen=True):
    """One process, as a contender prints it. Seconds and bytes."""

    threads: int
    start: float = msgspec.field(name="t_from_import_to_first_step")
    load: float = msgspec.field(name="t_make")
    first_step: float = msgspec.field(name="t_first_step")
    step: float = msgspec.field(name="t_step_median")
    steps: list[float] = msgspec.field(name="t_steps")
    peak_memory: int = msgspec.field(name="peak_rss")


@dataclass(frozen=True)
class Figures:
    """Medians of one contender, in seconds and bytes.

    ``start`` begins after ``import torch`` and ends with the first step. ``load`` is its part
    before that step. ``faster`` and ``step_ratio`` compare with ``torch.compile`` and its warm
    cache. ``faster`` says how many times sooner the first step is done. ``step_ratio`` is the
    step's time as a share of that of ``torch.compile``. Both are None if that was not measured.
    ``runs`` is the number of processes, and ``threads`` the number of threads in each. ``samples``
    are the single measurements behind the medians: of every process, and for ``step`` of every step.
    """

    name: str
    start: float
    load: float
    first_step: float
    step: float
    peak_memory: int
    runs: int
    threads: int
    faster: float | None = None
    step_ratio: float | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)


def measure(
    bundle: Path,
    *,
    model: str | None = None,
    device: str | None = None,
    trust: str | Collection[str] | None = None,
    modules: Sequence[str] = (),
    subclasses: Sequence[type[Tensor]] = (),
    rounds: int = 3,
    iterations: int = 30,
    threads: int = 0,
    seed: int = 0,
    progress: Callable[[str], None] = lambda name: None,
) -> list[Figures]:
    """Measure every target of ``bundle`` that can run here.

    Args:
        bundle: the bundle's path.
        model: the model's source, ``model.py[:factory]``. It adds eager and ``torch.compile``,
            once with an empty cache and then with a warm one.
        device: the device of torch that all contenders use. None: the CPU.
        trust: whether the bundle is trusted, as :func:`aotpack.load` takes it.
        modules: the modules that every process imports before its clock starts. They register
            operators that the bundle requires.
        subclasses: the tensor subclasses that the bundle requires. ``modules`` define them.
        rounds: the number of processes of each contender. The contenders take turns.
        iterations: the number of steps whose median is the step time.
        threads: the number of threads of each process. 0 leaves the choice to torch.
        seed: the seed of random inputs, used if neither the bundle nor ``model`` has inputs.
        progress: is called with the name of each contender before it runs.

    Returns:
        The figures of each contender.

    Raises:
        AotpackError: a contender failed. The message has the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="aotpack-bench-") as folder:
        inputs = Path(folder) / "inputs.pt"
        targets, autocast = _prepare(bundle, model, inputs, seed, subclasses, device)
        words = ["--inputs", inputs, "--iterations", iterations, "--threads", threads, "--json"]
        words += ["--autocast", autocast] if autocast else []
        words += ["--device", device] if device else []
        words += [word for module in modules for word in ("--import", module)]
        pins = [word for digest in _digests(trust) for word in ("--trust", digest)]
        found: dict[str, list[_Run]] = {}

        def run(name: str, *arguments: object) -> None:
            progress(name)
            cache = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor")}
            found.setdefault(name, []).append(_run([*arguments, *words], cache))

        if model is not None:
            run("torch.compile, empty cache", "--kind", "compile", "--model", os.path.abspath(model))
        for _ in range(rounds):
            if model is not None:
                run("eager", "--kind", "eager", "--model", os.path.abspath(model))
                run(REFERENCE, "--kind", "compile", "--model", os.path.abspath(model))
            for target in targets:
                run(f"bundle, {target}", "--kind", "bundle", "--bundle", bundle.resolve(), "--backend", target, *pins)
    return _compared([_figures(name, runs) for name, runs in found.items()])


def _prepare(
    path: Path, model: str | None, inputs: Path, seed: int, subclasses: Sequence[type[Tensor]], device: str | None
) -> tuple[list[str], str | None]:
    """Write the inputs of all contenders.

    Return the names of the targets that fit this machine, and a step's autocast.
    """
    import torch

    from aotpack_loader.archive.bundle import Bundle
    from aotpack_loader.devices.select import unfit_for
    from aotpack_loader.selftest import random_inputs, recorded_inputs

    with Bundle.open(path) as bundle:
        reasons = {name: unfit_for(bundle, target, device) for name, target in bundle.targets.items()}
        method = bundle.program.methods.get("train")
        if method is None:
            raise AotpackError("This bundle has no train method, so there is no step to measure.")
        recorded = recorded_inputs(bundle, subclasses)
        program = bundle.program
    if not any(not reason for reason in reasons.values()):
        raise AotpackError("No target of this bundle can run here.", [Problem(name, why) for name, why in reasons.items()])
    if model is not None:
        from ...model.entry import load_entry

        example: Any = load_entry(model).inputs
    else:
        example = recorded or random_inputs(program, method, seed, subclasses)
    torch.save(example, inputs)
    return [name for name, reason in reasons.items() if not reason], method.autocast


def _digests(trust: str | Collection[str] | None) -> Sequence[str]:
    return () if trust is None else (trust,) if isinstance(trust, str) else tuple(trust)


def _run(words: Sequence[object], environment: Mapping[str, str]) -> _Run:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FORGOTTEN)}
    command = [sys.executable, "-I", str(CONTENDER), *map(str, words)]
    done = subprocess.run(command, env={**kept, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"it exited with {done.returncode}"]
        raise AotpackError("A process that was to be measured failed.", [Problem(" ".join(map(str, words[:4])), last[0])])
    return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=_Run)


def _figures(name: str, runs: Sequence[_Run]) -> Figures:
    def middle(field: str) -> float:
        return float(statistics.median(getattr(run, field) for run in runs))

    return Figures(
        name=name,
        start=middle("start"),
        load=middle("load"),
        first_step=middle("first_step"),
        step=middle("step"),
        peak_memory=int(middle("peak_memory")),
        runs=len(runs),
        threads=runs[0].threads,
        samples={
            **{field: [getattr(run, field) for run in runs] for field in _SAMPLED},
            "step": [time for run in runs for time in run.steps],
        },
    )


def _compared(figures: Sequence[Figures]) -> list[Figures]:
    reference = next((item for item in figures if item.name == REFERENCE), None)
    if reference is None:
        return list(figures)
    return [replace(f, faster=reference.start / f.start, step_ratio=f.step / reference.step) for f in figures]

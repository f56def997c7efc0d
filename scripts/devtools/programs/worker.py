"""Builds, calls and compares random programs, several in one bundle. A failing program is isolated and reduced."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch

from aotpack_loader.errors import AotpackError
from devtools.harness import MismatchError, run, works_in_eager

from .drawing import Program, drawn, joined, reduced

_STRIDES = re.compile(r"\.(stride|conj|neg): |should have the strides|check='full': Method|at fault\.$")
_VIEWS = re.compile(rf"{_STRIDES.pattern}|: only in (eager|the bundle): |shares its memory with")
"""Where sizes vary, what ``reshape`` copies at some it copies at all."""
_DIFFERENCE = re.compile(r"(native )?call \d+: |check='full'")
_FIXED = re.compile(r"(native )?call 1: eager works; the bundle's \w+ raises InputError")
_PATH = re.compile(r"\b(out|args)\[(\d+)\]")
_COMPARED = ("wrong", "strides")


@dataclass(frozen=True)
class Outcome:
    """The result for a program.

    Args:
        status: ``pass``; ``refused`` at build; ``wrong``; ``strides`` if only strides differ (or
            results are no longer lazily conjugated); ``rounding`` if it differs in float32 or half
            precision but not in float64; ``raises`` for an error that is not ours; ``crash`` if the
            process died; ``skipped`` if eager refuses it; ``fixed`` if sizes should be dynamic but
            the bundle accepts only the example's.
        reason: the difference or the error.
        program: the program that ran; for a failure the smallest that fails in the same way.
    """

    status: str
    reason: str = ""
    program: Program | None = None

    @property
    def failed(self) -> bool:
        return self.status in ("wrong", "raises", "crash")


def check(names: Sequence[str], lines: int, target: str, attempts: int, *, dynamic: bool) -> dict[str, Outcome]:
    """Draw and check the programs of these names.

    Programs that are called alike share a bundle. ``dynamic``: sizes vary.

    A failing program is reduced in up to ``attempts`` further builds.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    programs = {name: replace(drawn(name, lines), dynamic=dynamic) for name in names}
    found: dict[str, Outcome] = {}
    for _, alike in groupby(sorted(names, key=lambda name: _called(programs[name])), lambda name: _called(programs[name])):
        found |= _check({name: programs[name] for name in alike}, target, attempts)
    return {name: found[name] for name in names}


def _called(program: Program) -> tuple[bool, bool, bool]:
    return program.training, program.exact_random, program.grows()


def _check(programs: Mapping[str, Program], target: str, attempts: int) -> dict[str, Outcome]:
    """Check programs in one bundle. If it does not pass, check the possible causes again."""
    whole = joined(list(programs.values()))
    found = _compared(whole, target) if len(programs) > 1 else outcome(whole, target)
    passed = {name: Outcome("pass", program=program) for name, program in programs.items()}
    if found.status == "pass":
        return passed
    separately: dict[str, Outcome] = {}
    if len(programs) > 1:
        for suspects in _suspects(programs, found):
            separately |= _check({name: programs[name] for name in suspects}, target, attempts)
        if not found.failed or any(one.status != "pass" for one in separately.values()):
            return passed | separately
        found = outcome(whole, target)  # Only several programs together fail. The first one reports it.
    if found.failed and attempts:
        whole = reduced(whole, lambda less: outcome(less, target).status == found.status, attempts)
        found = outcome(whole, target)
    return passed | separately | {next(iter(programs)): replace(found, program=whole)}


def _suspects(programs: Mapping[str, Program], found: Outcome) -> list[list[str]]:
    """Groups of programs to check again: those whose results or arguments differ.

    If that is unknown or all, each half.
    """
    owners: dict[str, list[str]] = {"out": [], "args": []}
    for name, program in programs.items():
        owners["out"] += [name] * len(program.results)
        owners["args"] += [name] * len(program.arguments)
    named = {owners[kind][int(index)] for kind, index in _PATH.findall(found.reason)} if found.status in _COMPARED else set()
    names = list(programs)
    if named and len(named) < len(names):
        return [[name for name in names if name in named]]
    return [names[: len(names) // 2], names[len(names) // 2 :]]


def outcome(program: Program, target: str) -> Outcome:
    """Compare one program with eager. A difference in float32 counts as wrong only if it also occurs in float64."""
    found = _compared(program, target)
    double = program.in_double()
    if found.status == "wrong" and double != program and _compared(double, target).status == "pass":
        return replace(found, status="rounding")
    return found


def _compared(program: Program, target: str) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="aotpack-program-") as folder:
        case = program.case("program", target, Path(folder))
        if not works_in_eager(case):
            return Outcome("skipped")
        try:
            run(case, Path(folder) / "program.aotpack")
        except MismatchError as error:
            lines = str(error).splitlines()[1:]
            differences = list(filter(_DIFFERENCE.match, lines))
            if differences and all(map(_FIXED.match, differences)):
                return Outcome("fixed", "\n".join(lines))
            layout = _VIEWS if program.dynamic else _STRIDES
            return Outcome("strides" if all(map(layout.search, lines)) else "wrong", "\n".join(lines))
        except AotpackError as error:
            return Outcome("refused", str(error))
        except Exception as error:
            return Outcome("raises", f"{type(error).__name__}: {error}")
    return Outcome("pass")

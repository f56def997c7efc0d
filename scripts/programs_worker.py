"""One random program: a bundle of it is built, called and compared with eager; where that fails, the program is made smaller."""

from __future__ import annotations

import re
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from aotpack_loader.errors import AotpackError
from tests.conformance.harness import MismatchError, run, works_in_eager
from tests.conformance.programs import Program, drawn, reduced

_STRIDES = re.compile(r"\.stride: |should have the strides|check='full': Method|at fault\.$")
_NO_BASE = re.compile(r"only in eager: out\[\d+\]\._base is ")
"""Of results without a gradient; where they are in one memory is compared all the same (README, what is left out)."""


@dataclass(frozen=True)
class Outcome:
    """What became of a program.

    Args:
        status: ``pass``; ``refused`` at build; ``wrong``; ``strides`` where results lie otherwise in memory, and nothing else;
            ``rounding`` where it differs in float32 and not in float64; ``raises`` an error that is none of ours; ``crash`` where
            the process died; ``skipped`` where eager refuses it.
        reason: what differs, or the error.
        program: what was run; of a failure the smallest that fails likewise.
    """

    status: str
    reason: str = ""
    program: Program | None = None

    @property
    def failed(self) -> bool:
        return self.status in ("wrong", "raises", "crash")


def check(name: str, lines: int, target: str, attempts: int) -> Outcome:
    """Draw the program of this name and check it, in ``attempts`` further builds making it smaller if it fails."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    program = drawn(name, lines)
    found = outcome(program, target)
    if not found.failed or not attempts:
        return replace(found, program=program)
    smaller = reduced(program, lambda less: outcome(less, target).status == found.status, attempts)
    return replace(outcome(smaller, target), program=smaller)


def outcome(program: Program, target: str) -> Outcome:
    """Compare one program with eager; what differs in float32 counts if it does in float64."""
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
            lines = [line for line in str(error).splitlines()[1:] if target == "portable" or not _NO_BASE.search(line)]
            if not lines:
                return Outcome("pass")
            return Outcome("strides" if all(map(_STRIDES.search, lines)) else "wrong", "\n".join(lines))
        except AotpackError as error:
            return Outcome("refused", str(error))
        except Exception as error:
            return Outcome("raises", f"{type(error).__name__}: {error}")
    return Outcome("pass")

"""Tries a fix in a process of its own, because some faults end the process:

in ``tests``, ``python -m torch_fixes.trial ID [--without]`` builds the case of a fix, with all
fixes or without this one, compares it with eager, and prints the outcome as JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from devtools.releases.outcomes import accept_this_torch

TESTS = Path(__file__).resolve().parents[1]
_TIMEOUT = 600


@dataclass(frozen=True)
class Outcome:
    """What a case did.

    Args:
        result: ``same`` as eager, ``differs`` from it, ``refused`` by a build or a call, or
            ``crashed``: the process ended.
        message: what differs, or the error.
        calls: how often the fix was called.
    """

    result: str
    message: str = ""
    calls: int = 0


def attempt(identifier: str, *, without: bool) -> Outcome:
    """Try a fix in a process of its own, with this process's caches."""
    command = [sys.executable, "-m", "torch_fixes.trial", identifier, *(["--without"] if without else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False, cwd=TESTS)
    if done.returncode < 0:
        return Outcome("crashed", f"signal {-done.returncode}: {_last(done.stderr)}")
    if done.returncode:
        raise RuntimeError(f"{identifier} could not be tried:\n{done.stderr[-4000:]}")
    return Outcome(**json.loads(_last(done.stdout)))


def _last(text: str) -> str:
    return next(reversed(text.strip().splitlines()), "")


def outcome(identifier: str, *, without: bool, out: Path) -> Outcome:
    """Try a fix in this process."""
    import aotpack
    from aotpack._torch.fixes import applying
    from aotpack._torch.fixes.entries import FIXES

    from .harness import MismatchError, check, load_case

    case = load_case(next(fix for fix in FIXES if fix.id == identifier))
    before = applying.calls()[identifier]
    result, message = "same", ""
    with applying.without(*([identifier] if without else [])):
        try:
            check(case, out)
        except MismatchError as error:
            result, message = "differs", str(error)
        except aotpack.AotpackError as error:
            result, message = "refused", str(error)
    return Outcome(result, message[:2000], applying.calls()[identifier] - before)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("id")
    parser.add_argument("--without", action="store_true")
    given = parser.parse_args()
    accept_this_torch()  # scripts/test-torch tries releases that are not supported yet
    with tempfile.TemporaryDirectory() as folder:
        found = outcome(given.id, without=given.without, out=Path(folder) / "case.aotpack")
    print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()

"""Tests native code on a release of torch that it was not compiled for, once on each machine.

The names that the code calls and the table of tried releases are the first check
(:mod:`..devices.torch_releases`). This is the second: the bundle's self-test runs before the first
use, and a note in the cache records that it passed. The note belongs to the digests of the code,
the version of torch and the processor.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..archive import digest
from ..archive.cache import cache_root, is_private, private_directory, write_whole
from ..devices import cpuinfo
from ..devices.torch_releases import is_tried
from ..errors import DirectoryError, Problem, TargetError
from ..format import schema
from ..options import LoadOptions
from ..replay import replay

if TYPE_CHECKING:
    from ..module.program import LoadedProgram

_SHOWN = 5


def tested_here(
    path: str | os.PathLike[str],
    program: schema.Program,
    target: schema.Target,
    options: LoadOptions,
    load: Callable[[], LoadedProgram],
) -> tuple[str, str]:
    """Run the bundle's self-test unless it passed here before.

    Returns what was tested, for the reason of a load, and a warning or an empty string. ``load``
    opens the same target, with the stored weights.

    Raises:
        TargetError: the code computes other values than were recorded.
    """
    about = f"compiled for torch {target.torch}, runs on {torch.__version__}"
    if program.self_test is None:
        missing = "the bundle has no self-test, so its values were not compared here"
        advice = f"The native code was {about}, which was not tried, and {missing}. Compare with backend='portable', or "
        untried = "" if is_tried(target) else f"{advice}build with --self-test."
        return f"{about}; {missing}", untried
    passed = f"{about}; its self-test passed here", ""
    note = _note(target)
    if note is not None and is_private(note):
        return passed
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        report = replay(path, load, options.subclasses)
    wrong = [Problem(row, f"error {error:.2e}, tolerance {limit:.2e}") for row, error, limit, ok in report.rows if not ok]
    if wrong:
        more = f" {len(wrong) - _SHOWN} more tensors differ." if len(wrong) > _SHOWN else ""
        raise TargetError(
            f"The code of {target.name}, {about}, and computes other values than were recorded.{more}",
            wrong[:_SHOWN],
            hint="Load with backend='portable', or run `aotpack compile` with this torch.",
        )
    if note is not None:
        with contextlib.suppress(OSError):  # on a full disk the test runs again next time
            write_whole(note, b"")
    return passed


def _note(target: schema.Target) -> Path | None:
    """The file that exists if the self-test passed; None if there can be none."""
    codes = sorted(executable.code.digest for executable in target.executables.values())
    where = [str(torch.__version__), cpuinfo.architecture(), sorted(cpuinfo.features())]
    key = digest.sha256(json.dumps([codes, where]).encode())
    try:
        folder = private_directory(cache_root() / "self-tests", "AOTPACK_CACHE")
    except DirectoryError:
        return None
    return folder / digest.hex_part(key)

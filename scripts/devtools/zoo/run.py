"""Runs entries, each in two processes, and updates the results file after each."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from devtools.machine import provenance, tree
from devtools.paths import RESULTS
from devtools.zoo import workers
from devtools.zoo.compare import DifferenceError, compare, judge
from devtools.zoo.roll import ARCHITECTURES

RECORD = RESULTS / "zoo.json"
TIMEOUT = 1200
LOOSER = {"portable": 1, "cpu": 10}
"""Targets, and how much larger an error may be there: compiled code adds up in another order."""

VARIANTS = {
    "`portable`": ("portable", False),
    "`portable`, dynamic batch": ("portable", True),
    "`cpu`": ("cpu", False),
}
"""Title of a column to target and whether the batch is dynamic."""

BUILDERS = multiprocessing.get_context("forkserver")
"""Building processes are forks of one that has imported what is slow to import, and nothing more."""
# vision must be imported before anything that imports torchvision.
BUILDERS.set_forkserver_preload([
    "devtools.zoo.vision", "aotpack.pipeline.pipeline", "transformers.modeling_utils",
    "diffusers.models.modeling_utils", "timm.models",
])  # fmt: skip

Line = dict[str, Any]


class ProcessError(Exception):
    """A process of an entry failed. The message is the reason."""


@dataclass(frozen=True)
class Entry:
    """A line of the results: an architecture on one target, with static sizes or a dynamic batch."""

    name: str
    target: str
    dynamic: bool

    def __str__(self) -> str:
        return f"{self.name} on {self.target}" + (", dynamic batch" if self.dynamic else "")


def entries() -> list[Entry]:
    """All entries, in the registry's order."""
    return [Entry(name, *key) for name in ARCHITECTURES for key in VARIANTS.values()]


def methods_of(entry: Entry) -> tuple[str, ...]:
    """The methods to build. With a dynamic batch only training, to save time."""
    return ("train",) if entry.dynamic else ARCHITECTURES[entry.name].methods


def stored() -> dict[Entry, Line]:
    """The lines of the results file."""
    lines = json.loads(RECORD.read_text())["entries"] if RECORD.exists() else []
    return {key_of(line): line for line in lines}


def key_of(line: Mapping[str, Any]) -> Entry:
    return Entry(line["name"], line["target"], line["dynamic"])


def run_all(chosen: Sequence[Entry], jobs: int, done: Callable[[Entry, Line, str], None]) -> None:
    """Run entries, ``jobs`` at a time. ``done`` gets each result with the output of its processes.

    The results file is updated after each. An interrupted run keeps its results, and two runs can
    share the file.
    """
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run_entry, entry): entry for entry in chosen}
        try:
            for future in as_completed(futures):
                line, log = future.result()
                write({**stored(), futures[future]: line})
                done(futures[future], line, log)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def write(lines: Mapping[Entry, Line]) -> None:
    """Write all results, in the registry's order."""
    found = {
        **provenance(workers.THREADS),
        "entries": [lines[entry] for entry in entries() if entry in lines],
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(found, indent=2) + "\n")


def run_entry(entry: Entry) -> tuple[Line, str]:
    """Build and check one entry. Returns its line of the results and the output of the processes."""
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    line: Line = {**asdict(entry), "status": "failed", "reason": None, "date": date, "tree": tree()}
    with tempfile.TemporaryDirectory(prefix="aotpack-zoo-") as directory:
        folder = Path(directory)
        (folder / "entry.json").write_text(json.dumps({**asdict(entry), "methods": methods_of(entry)}))
        try:
            line |= build(folder)
            line |= check(folder)
            errors = compare(load_file(folder / "eager.safetensors"), load_file(folder / "bundle.safetensors"))
            line["errors"] = {kind: error if math.isfinite(error) else None for kind, error in errors.items()}
            judge(errors, ARCHITECTURES[entry.name].tolerance * LOOSER[entry.target])
            line["status"] = "passed"
        except (ProcessError, DifferenceError) as error:
            line["reason"] = str(error)
        return line, "".join(file.read_text() for file in sorted(folder.glob("*.log")))


def build(folder: Path) -> dict[str, Any]:
    """Build in a separate process.

    Raises:
        ProcessError: it failed, or wrote no answer.
    """
    child = BUILDERS.Process(target=workers.run, args=("build", folder))
    child.start()
    child.join(TIMEOUT)
    if child.exitcode is None:
        child.kill()
        raise ProcessError(f"build: not done after {TIMEOUT} s")
    return answer("build", folder, child.exitcode)


def check(folder: Path) -> dict[str, Any]:
    """Check in a new, isolated process, in an empty directory.

    Raises:
        ProcessError: it failed, or wrote no answer.
    """
    empty = folder / "empty"
    empty.mkdir()
    environment = {word: value for word, value in os.environ.items() if not word.startswith("PYTHON")}
    command = [sys.executable, "-I", workers.__file__, "check", str(folder)]
    try:
        code = subprocess.run(command, cwd=empty, env=environment, stdin=subprocess.DEVNULL, timeout=TIMEOUT).returncode
    except subprocess.TimeoutExpired:
        raise ProcessError(f"check: not done after {TIMEOUT} s") from None
    return answer("check", folder, code)


def answer(name: str, folder: Path, code: int) -> dict[str, Any]:
    """The answer that a process wrote."""
    file = folder / f"{name}.json"
    if code or not file.exists():
        last = (folder / f"{name}.log").read_text().strip().splitlines()[-1:]
        raise ProcessError(f"{name}: the process ended with {code}: {' '.join(last)}")
    found: dict[str, Any] = json.loads(file.read_text())
    if "error" in found:
        raise ProcessError(f"{name}: {found['error']}")
    return found

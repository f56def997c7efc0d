"""``scripts/kill``: kills builds, pushes, pulls, loads and training runs at random points (SIGKILL).

A kill comes after a random time, or before a random operation that changes a file. After it nothing
half-written may be taken for whole. Then the same operation runs again. It must succeed, and remove
what the killed one left. A training run goes on, and must end with the bytes of one that was not
killed. The results count kills by operation. A run that was stopped goes on where the results file
ends, unless ``--fresh`` is given.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aotpack.pipeline.pipeline import build
from aotpack.registry.push import push
from aotpack_loader.archive.temporaries import PREFIX
from aotpack_loader.registry.reference import Reference

from ..machine import provenance
from ..paths import ROOT
from ..registry.bench import write_sparse
from ..registry.server import serve
from .operations import EXAMPLE, Build, Load, Operation, Pull, Push, Train, model

RESULTS = ROOT / "scripts" / "bench" / "results" / "kill.json"
KINDS = ("build", "push", "pull", "load", "train")
GIGABYTES = 0.005
"""The size of the one blob of weights that is pushed and pulled: large enough to be sent in requests of its own."""
SAVE_EVERY = 20
BUILD_AGAIN = 4
"""After every so many kills of a build, the next run is not killed."""
_SHORTEST = 0.002
_EVENTS = frozenset(
    {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.utime", "fcntl.flock"}
)
"""Audit events of changes to files. Opening a file to write is one more."""


class OperationError(Exception):
    """An operation that was not killed failed."""


class FileOperations:
    """Counts what a forked process does to files, and kills it before one of these operations."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)

    @property
    def count(self) -> int:
        return int.from_bytes(self._shared[:8], "little")

    def watch(self, kill_at: int | None) -> None:
        """Begin to count in this process, which dies before operation ``kill_at``."""
        self._shared[:8] = bytes(8)

        def note(event: str, arguments: tuple[Any, ...]) -> None:
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if writes or event in _EVENTS:
                number = self.count + 1
                self._shared[:8] = number.to_bytes(8, "little")
                if number == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(note)


def forked(operation: Operation, files: FileOperations, *, delay: float | None = None, kill_at: int | None = None) -> bool:
    """Run an operation in a forked process. Kill it after ``delay`` seconds, or before a file operation.

    Returns whether that ended it.

    Raises:
        OperationError: it ended by itself, and with an error.
    """
    pid = os.fork()
    if not pid:
        status = 1
        try:
            files.watch(kill_at)
            operation.run()
            status = 0
        except BaseException:  # the exit status reports it
            traceback.print_exc()
        finally:
            os._exit(status)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    asked = delay is not None or kill_at is not None
    if asked and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if status:
        raise OperationError(f"{type(operation).__name__} ended with status {status}")
    return False


def turn(operation: Operation, draw: random.Random, counts: dict[str, Any], longest: float, files: FileOperations) -> float:
    """Kill one run, check, and run again. Returns the time that a run takes."""
    operation.prepare(draw)
    at_a_file = operation.file_operations > 0 and draw.random() < 0.7
    try:
        if at_a_file:
            killed = forked(operation, files, kill_at=draw.randint(1, operation.file_operations))
        else:
            killed = forked(operation, files, delay=draw.uniform(0, longest))
        if not killed:
            counts["ended before the kill"] += 1
            return longest if at_a_file else max(longest * 0.95, _SHORTEST)
        counts["killed"] += 1
        counts["before a file operation"] += at_a_file
        operation.check()
        counts["left something"] += any(PREFIX in name for name in operation.left())
        if isinstance(operation, Build) and counts["killed"] % BUILD_AGAIN:
            return longest  # a build takes long
        start = time.perf_counter()
        forked(operation, files)
        took = time.perf_counter() - start
        operation.file_operations = files.count
        counts["next runs"] += 1
        operation.check()
        left = operation.left() - operation.expected()
        if left:
            raise AssertionError(f"the next run did not remove {sorted(left)[:3]}")
    except Exception as error:
        traceback.print_exc()
        counts["findings"].append(f"{type(error).__name__}: {error}"[:300])
        return longest
    return took


@contextlib.contextmanager
def operations(folder: Path, kinds: list[str]) -> Iterator[dict[str, Operation]]:
    """Set up a registry and bundles, and yield the operations of ``kinds``."""
    sparse, native = folder / "sparse", folder / "native.aotpack"
    write_sparse(sparse, GIGABYTES, shards=1)
    if "load" in kinds:
        build(model(), (EXAMPLE,), out=native, targets=("cpu",))  # with the user's compile cache
    os.environ["AOTPACK_CACHE"] = str(folder / "own-cache")
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    with serve(folder / "registry") as host:
        os.environ["AOTPACK_PLAIN_HTTP"] = host  # no attempt with TLS before
        ready, loads = (Reference.parse(f"oci://{host}/kill/{name}:v1") for name in ("ready", "native"))
        digest = push(sparse, ready).digest
        if "load" in kinds:
            push(native, loads)
        made: dict[str, Callable[[], Operation]] = {
            "build": lambda: Build(folder / "build"),
            "push": lambda: Push(folder / "push", host, sparse),
            "pull": lambda: Pull(folder / "pull", ready, digest),
            "load": lambda: Load(folder / "load", [str(native), str(loads)]),
            "train": lambda: Train(folder / "train"),
        }
        yield {kind: made[kind]() for kind in kinds}


def run(folder: Path, results: dict[str, Any], times: int, kinds: list[str], out: Path) -> None:
    """Kill each kind of operation until it was killed ``times`` times. The results go to ``out`` now and then."""
    with operations(folder, kinds) as found:
        longest: dict[str, float] = {}
        files = FileOperations()
        for kind in kinds:
            for attempt in range(2):  # the first imports what the operation needs; a forked process inherits that
                found[kind].prepare(random.Random(attempt))
                start = time.perf_counter()
                found[kind].run() if attempt == 0 else forked(found[kind], files)
                found[kind].file_operations = files.count
                longest[kind] = time.perf_counter() - start
        while unfinished := [kind for kind in kinds if results["operations"][kind]["killed"] < times]:
            for kind in unfinished:
                counts = results["operations"][kind]
                number = counts["killed"] + counts["ended before the kill"]
                draw = random.Random(f"{kind} {number}")
                started = time.perf_counter()
                longest[kind] = turn(found[kind], draw, counts, longest[kind], files)
                counts["seconds"] = round(counts["seconds"] + time.perf_counter() - started, 2)
                if number % SAVE_EVERY == 0:
                    save(results, out)
                    for uploads in (folder / "registry").rglob("_uploads"):
                        shutil.rmtree(uploads, ignore_errors=True)  # what killed pushes sent; a registry purges it


def save(results: dict[str, Any], out: Path) -> None:
    out.write_text(json.dumps(results | {"provenance": provenance(1)}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="default: all of them")
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument("--folder", type=Path, help="where to work, such as a tmpfs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    out: Path = options.out
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() and not options.fresh else {"operations": {}}
    for kind in KINDS:
        numbers = dict.fromkeys(("killed", "before a file operation", "ended before the kill", "left something", "next runs"), 0)
        results["operations"][kind] = numbers | {"seconds": 0.0, "findings": []} | results["operations"].get(kind, {})
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    try:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            run(Path(name), results, options.times, options.kinds or [*KINDS], out)
    finally:
        save(results, out)  # also of a run that was interrupted
    print(json.dumps(results["operations"], indent=1))
    return int(any(counts["findings"] for counts in results["operations"].values()))


if __name__ == "__main__":
    sys.exit(main())

"""``scripts/kill``: kills builds, pushes, pulls and loads at random points (SIGKILL).

After each kill nothing half-written may be taken for whole. Then the same operation runs again. It must
succeed, and remove what the killed one left. The results count kills by operation. A run that was
stopped goes on where the results file ends, unless ``--fresh`` is given.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
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
from .operations import EXAMPLE, Build, Load, Operation, Pull, Push, model

RESULTS = ROOT / "scripts" / "bench" / "results" / "kill.json"
KINDS = ("build", "push", "pull", "load")
GIGABYTES = 0.005
"""The size of the one blob of weights that is pushed and pulled: large enough to be sent in requests of its own."""
SAVE_EVERY = 20
BUILD_AGAIN = 4
"""After every so many kills of a build, the next run is not killed."""
_SHORTEST = 0.002


class OperationError(Exception):
    """An operation that was not killed failed."""


def forked(operation: Operation, delay: float | None = None) -> bool:
    """Run an operation in a forked process and kill it after ``delay`` seconds. Returns whether that ended it.

    Raises:
        OperationError: it ended by itself, and with an error.
    """
    pid = os.fork()
    if not pid:
        status = 1
        try:
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
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and delay is not None:
        return True
    if status:
        raise OperationError(f"{type(operation).__name__} ended with status {status}")
    return False


def turn(operation: Operation, draw: random.Random, counts: dict[str, Any], longest: float) -> float:
    """Kill one run, check, and run again. Returns the time that a run takes."""
    operation.prepare(draw)
    try:
        if not forked(operation, draw.uniform(0, longest)):
            counts["ended before the kill"] += 1
            return max(longest * 0.95, _SHORTEST)
        counts["killed"] += 1
        operation.check()
        counts["left something"] += any(PREFIX in name for name in operation.left())
        if isinstance(operation, Build) and counts["killed"] % BUILD_AGAIN:
            return longest  # a build takes long
        start = time.perf_counter()
        forked(operation)
        took = time.perf_counter() - start
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
def operations(folder: Path) -> Iterator[dict[str, Operation]]:
    """Set up a registry and bundles, and yield the operations by kind."""
    sparse, native = folder / "sparse", folder / "native.aotpack"
    write_sparse(sparse, GIGABYTES, shards=1)
    build(model(), (EXAMPLE,), out=native, targets=("cpu",))  # with the user's compile cache
    os.environ["AOTPACK_CACHE"] = str(folder / "own-cache")
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    with serve(folder / "registry") as host:
        os.environ["AOTPACK_PLAIN_HTTP"] = host  # no attempt with TLS before
        ready, loads = (Reference.parse(f"oci://{host}/kill/{name}:v1") for name in ("ready", "native"))
        digest = push(sparse, ready).digest
        push(native, loads)
        yield {
            "build": Build(folder / "build"),
            "push": Push(folder / "push", host, sparse),
            "pull": Pull(folder / "pull", ready, digest),
            "load": Load(folder / "load", [str(native), str(loads)]),
        }


def run(folder: Path, results: dict[str, Any], times: int, kinds: list[str]) -> None:
    """Kill each kind of operation until it was killed ``times`` times."""
    with operations(folder) as found:
        longest: dict[str, float] = {}
        for kind in kinds:
            for attempt in range(2):  # the first imports what the operation needs; a forked process inherits that
                found[kind].prepare(random.Random(attempt))
                start = time.perf_counter()
                found[kind].run() if attempt == 0 else forked(found[kind])
                longest[kind] = time.perf_counter() - start
        while unfinished := [kind for kind in kinds if results["operations"][kind]["killed"] < times]:
            for kind in unfinished:
                counts = results["operations"][kind]
                number = counts["killed"] + counts["ended before the kill"]
                draw = random.Random(f"{kind} {number}")
                started = time.perf_counter()
                longest[kind] = turn(found[kind], draw, counts, longest[kind])
                counts["seconds"] = round(counts["seconds"] + time.perf_counter() - started, 2)
                if number % SAVE_EVERY == 0:
                    save(results)
                    for uploads in (folder / "registry").rglob("_uploads"):
                        shutil.rmtree(uploads, ignore_errors=True)  # what killed pushes sent; a registry purges it


def save(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results | {"provenance": provenance(1)}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="default: all of them")
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument("--folder", type=Path, help="where to work, such as a tmpfs")
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() and not options.fresh else {"operations": {}}
    for kind in KINDS:
        empty = {"killed": 0, "ended before the kill": 0, "left something": 0, "next runs": 0, "seconds": 0.0, "findings": []}
        results["operations"].setdefault(kind, empty)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        run(Path(name), results, options.times, options.kinds or [*KINDS])
    save(results)
    print(json.dumps(results["operations"], indent=1))
    return int(any(counts["findings"] for counts in results["operations"].values()))


if __name__ == "__main__":
    sys.exit(main())

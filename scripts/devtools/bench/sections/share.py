"""Several processes that load one bundle at once, as in data-parallel training: total time, and shared memory."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import IO, Any

from devtools.bench.runner import BOTH, PROCESSES, Bench, BenchError, example, network

GOAL = None
PROCESSES_AT_ONCE = (1, 2, 4, 8)


def measure(bench: Bench) -> dict[str, Any]:
    case = example("digits") if bench.quick else network("gpt2")
    bundle = bench.bundle(case, *BOTH)
    bench.start("bundle", case, "--bundle", bundle, "--backend", "cpu")  # extracts the code
    counts = PROCESSES_AT_ONCE[:2] if bench.quick else PROCESSES_AT_ONCE
    found = {str(count): _run_together(bench, bundle, bench.inputs(case), count) for count in counts}
    most = found[str(counts[-1])]
    return {
        "network": case.name,
        "processes": found,
        # /proc divides each shared page equally among the processes that map it.
        "ratios": {
            "weights in memory of all processes, to one copy": most["weights_pss_bytes"] / most["weights_bytes"],
            "seconds of all, to one": most["seconds"] / found["1"]["seconds"],
        },
    }


def _run_together(bench: Bench, bundle: Path, inputs: Path, count: int) -> dict[str, Any]:
    """Start the processes, wait until each has run an inference, let them report their memory, and end them."""
    words = bench.command(PROCESSES / "hold.py", bundle, inputs, one_core=False)
    begin = time.perf_counter()
    running = [
        subprocess.Popen(words, env=bench.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    try:
        started = [_answer(process.stdout) for process in running]
        seconds = time.perf_counter() - begin
        for process in running:
            _signal(process.stdin)
        memory = [_answer(process.stdout) for process in running]
        for process in running:
            _signal(process.stdin)
            process.wait()
    finally:
        for process in running:
            process.kill()
            process.wait()
    return {
        "seconds": seconds,
        "load_seconds": max(one["load_seconds"] for one in started),
        "weights_bytes": started[0]["weights_bytes"],
        **{name: sum(one[name] for one in memory) for name in memory[0]},
    }


def _signal(stream: IO[str] | None) -> None:
    assert stream is not None
    stream.write("\n")
    stream.flush()


def _answer(stream: IO[str] | None) -> dict[str, Any]:
    assert stream is not None
    line = stream.readline()
    if not line:
        raise BenchError("A process that loads the bundle beside others ended.")
    found: dict[str, Any] = json.loads(line)
    return found

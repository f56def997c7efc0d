"""``import torch`` against importing the loader, in new processes, and further imports of a load and a step."""

from __future__ import annotations

import statistics
from typing import Any

from devtools.bench.runner import BOTH, Bench, example, in_turns

GOAL = 1.05

_IMPORT = "import time; a = time.perf_counter(), time.process_time(); {}; \
b = time.perf_counter(), time.process_time(); print(b[0] - a[0], b[1] - a[1])"
_STATEMENTS = {
    "torch": "import torch",
    "aotpack_loader": "import aotpack_loader",
    "load": "from aotpack_loader import load",
    "load_after_torch": "import torch; a = time.perf_counter(), time.process_time(); from aotpack_loader import load",
}


def measure(bench: Bench) -> dict[str, Any]:
    found: dict[str, list[list[float]]] = {name: [] for name in _STATEMENTS}
    for number in range(bench.times(21, 3) + 1):
        for name in in_turns(_STATEMENTS, number):
            figures = [float(word) for word in bench.python("-I", "-c", _IMPORT.format(_STATEMENTS[name])).split()]
            if number:  # the first round writes bytecode
                found[name].append(figures)
    case = example("digits", dynamic=True)
    bundle = bench.bundle(case, *BOTH)
    added = {}
    for backend in ("cpu", "portable"):
        run = bench.start("bundle", case, "--bundle", bundle, "--backend", backend)
        added[backend] = {"modules": run["modules_added"], "of_the_compiler": run["compiler_modules_added"]}
    wall = {name: statistics.median(value[0] for value in values) for name, values in found.items()}
    cpu = {name: statistics.median(value[1] for value in values) for name, values in found.items()}
    return {
        "processes": len(found["torch"]),
        "seconds": wall,
        "cpu_seconds": cpu,
        "ratios": {
            "aotpack_loader": wall["aotpack_loader"] / wall["torch"],
            "load": wall["load"] / wall["torch"],
            "load, processor time": cpu["load"] / cpu["torch"],
            "load, as what it adds after torch": 1 + wall["load_after_torch"] / wall["torch"],
        },
        "imported_by_load_and_step": added,
    }

"""One bundle with code for three instruction sets: the gain of each on this machine, and which one a load selects."""

from __future__ import annotations

from typing import Any

from aotpack_loader.devices.cpuinfo import X86_LEVELS, features
from devtools.bench.runner import PROCESSES, Bench, Case, example, network

GOAL = None
BASE = "x86-64-v2"
LEVELS = (BASE, "x86-64-v3", "x86-64-v4")


def measure(bench: Bench) -> dict[str, Any]:
    able = [level for level in LEVELS if features().issuperset(X86_LEVELS[level])]
    cases = [network("tiny")] if bench.quick else [example("digits"), example("gpt")]
    found = {case.name: _measured(bench, case, able) for case in cases}
    return {
        "levels_of_this_machine": able,
        "networks": found,
        "ratios": {
            f"{name}, {level}": one["seconds"][f"cpu:{level}"] / one["seconds"][f"cpu:{BASE}"]
            for name, one in found.items()
            for level in able
        },
    }


def _measured(bench: Bench, case: Case, able: list[str]) -> dict[str, Any]:
    bundle = bench.bundle(case, "--method", "train", *(word for level in LEVELS for word in ("--target", f"cpu:{level}")))
    words = ["--model", bench.source(case), "--inputs", bench.inputs(case), "--threads", 1, "--rounds", bench.times(15, 3)]
    for level in able:
        words += ["--bundle", f"cpu:{level}={bundle}"]
    taken = bench.start("bundle", case, "--bundle", bundle)["backend"]
    return {**bench.json(PROCESSES / "step.py", *words), "taken_at_load": taken, "bundle_bytes": bundle.stat().st_size}

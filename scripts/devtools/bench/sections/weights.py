"""Weights of 1 MB to 8 GB (zeros in sparse files). Load, first call and resident memory must not grow with them."""

from __future__ import annotations

import subprocess
from typing import Any

from devtools.bench.runner import PROCESSES, Bench, alternately, middle, network, timed

GOAL = 1.2
MEGABYTES = (1, 64, 1024, 8000)
"""One tensor is one blob, and a bundle file holds blobs of up to 8 GiB."""


def measure(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {}
    cases = {size: network("embedding", options={"megabytes": size}) for size in (MEGABYTES[:2] if bench.quick else MEGABYTES)}
    bundles = {}
    for size, case in cases.items():
        seconds, bundle = timed(lambda case=case: bench.bundle(case, "--target", "portable", "--method", "infer"))
        subprocess.run(["fallocate", "--dig-holes", bundle], check=True)
        bundles[size] = bundle
        found[str(size)] = {"build_seconds": seconds}
    inputs = bench.inputs(next(iter(cases.values())))
    contenders = {
        str(size): lambda bundle=bundle: bench.json(PROCESSES / "load.py", bundle, inputs) for size, bundle in bundles.items()
    }
    for size, runs in alternately(contenders, bench.times(11, 3)).items():
        found[size] |= {name: middle(run[name] for run in runs) for name in runs[0]}
    smallest, largest = str(min(cases)), str(max(cases))
    for size, bundle in bundles.items():
        if size > MEGABYTES[1]:
            bundle.unlink()
    return {
        "megabytes": found,
        "ratios": {
            name: found[largest][name] / found[smallest][name]
            for name in ("load_seconds", "first_call_seconds", "resident_bytes")
        },
    }

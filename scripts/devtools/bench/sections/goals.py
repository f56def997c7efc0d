"""Start, memory and build of the bundle beside eager and ``torch.compile``, in about 17 minutes.

For each network in turn: ``torch.compile`` from nothing, a build, starts, and the peak of a step.
The bundle and the compile cache of the first two serve the others. The goal for memory counts
tensors. How far a step raises the resident set is measured beside it. That has oneDNN's own memory,
too, but it depends on the holes that a compiler leaves in malloc's heap.

Results are written after each network, so an interrupted run has those of the networks before.
``--networks`` replaces the named rows, and keeps the others. Each row says when it was measured,
and at which load.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from devtools.bench.runner import PROCESSES, Bench, Case, alternately, example, middle, network
from devtools.bench.sections.live import live
from devtools.bench.sections.memory import peak
from devtools.bench.sections.start import WHOLE
from devtools.machine import measured_now, provenance

GOAL = 1.0
GOALS = {"start": 1.0, "memory": 1.0, "build": 0.6}

_TRAIN = ("--target", "cpu", "--method", "train")


def cases(bench: Bench) -> list[tuple[Case, int]]:
    """Networks from small to large, each with its number of starts."""
    if bench.quick:
        return [(example("digits"), 1)]
    found = [(example("digits"), 5), (example("gpt"), 3), (network("resnet50"), 3), (network("gpt2"), 3)]
    return [(case, times) for case, times in found if bench.networks is None or case.name in bench.networks]


def measure(bench: Bench) -> dict[str, Any]:
    small = network("tiny")  # first, to create what a machine needs only once: headers, and the call library of this source
    bench.build(small, *_TRAIN)
    bench.start("compile", small)
    file = bench.results / "goals.json"
    partial_run = bench.networks is not None and file.exists() and not bench.quick
    rows: dict[str, Any] = json.loads(file.read_text())["networks"] if partial_run else {}
    for case, times in cases(bench):
        measured = measured_now()
        rows[case.name] = {**_measured(bench, case, times), "measured": measured}
        if not bench.quick:
            partly = {**provenance(), "minutes": 0, "goal": GOAL, **result_of(rows)}
            bench.results.mkdir(exist_ok=True)
            file.write_text(json.dumps(partly, indent=2) + "\n")
    return result_of(rows)


def _measured(bench: Bench, case: Case, times: int) -> dict[str, Any]:
    with bench.empty("TORCHINDUCTOR_CACHE_DIR") as caches:
        compiled = bench.compiled(case, **caches)
        built = bench.build(case, *_TRAIN)
        on = ("--bundle", built.bundle, "--backend", "cpu")
        bench.start("bundle", case, *on)  # extracts the code and writes bytecode
        starts = alternately(
            {"eager": partial(bench.start, "eager", case), "bundle": partial(bench.start, "bundle", case, *on)}, times
        )
        source = ("--model", bench.source(case))
        peaks = alternately(
            {
                "eager": partial(peak, bench, case, "eager", *source),
                "compile": partial(peak, bench, case, "compile", *source, **caches),
                "bundle": partial(peak, bench, case, "bundle", *on),
            },
            bench.times(3),
        )
        tensors = {
            "eager": live(bench, case, "eager", *source),
            "compile": live(bench, case, "compile", *source, **caches),
            "bundle": live(bench, case, "bundle", *on),
        }
        touches = [bench.json(PROCESSES / "first_touch.py", built.bundle) for _ in range(bench.times(3))]
    return {
        "start_seconds": {
            # What goal 3 compares: eager's own first step, without making the model, and a bundle's load and first step.
            "eager, first step": middle(run["t_first_step"] for run in starts["eager"]),
            "bundle, import, load and first step": middle(run[WHOLE] for run in starts["bundle"]),
            "bundle, first step": middle(run["t_first_step"] for run in starts["bundle"]),
            "bundle, a step": middle(run["t_step_median"] for run in starts["bundle"]),
        },
        "first_touch_seconds": {name: middle(found[f"{name}_seconds"] for found in touches) for name in ("read", "write")},
        "tensor_bytes": tensors,
        "peak_bytes": {kind: middle(run["peak_bytes"] for run in found) for kind, found in peaks.items()},
        "resident_bytes": {kind: middle(run["resident_bytes"] for run in found) for kind, found in peaks.items()},
        "build_seconds": {"compile": compiled["process_seconds"], "bundle": built.seconds},
        "build_cpu_seconds": {"compile": compiled["process_cpu_seconds"], "bundle": built.cpu_seconds},
        "build_stages": {stage["name"]: round(stage["seconds"], 3) for stage in built.report["stages"]},
    }


def result_of(rows: dict[str, Any]) -> dict[str, Any]:
    """The rows, with the ratio of each goal."""
    ratios: dict[str, float] = {}
    for name, row in rows.items():
        start, tensors, build = row["start_seconds"], row["tensor_bytes"], row["build_seconds"]
        ratios[f"start, {name}"] = start["bundle, import, load and first step"] / start["eager, first step"]
        ratios[f"memory, {name}"] = tensors["bundle"] / min(tensors["eager"], tensors["compile"])
        ratios[f"build, {name}"] = build["bundle"] / build["compile"]
    return {"threads": 1, "networks": rows, "goals": GOALS, "ratios": ratios}

"""The update of AdamW alone: a bundle beside ``torch.optim`` with ``fused=True`` and ``foreach=True``."""

from __future__ import annotations

from typing import Any

from devtools.bench.runner import PROCESSES, Bench, network

CASES = {
    "gpt_plain": network("gpt_plain"),
    "resnet50": network("resnet50"),
    "parameters_1000": network("parameters", options={"count": 1000}),
}
GOALS = {"to fused": 1.0, "1,000 parameters of 8, to foreach": 0.2}


def measure(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for name, case in list(CASES.items())[-bench.times(3) :]:
        for target in ("cpu", "portable"):
            bundle = bench.bundle(case, "--target", target, "--method", "train", "--optimizer", "adamw", "--no-check")
            row = bench.json(PROCESSES / "optimizer.py", bundle, bench.times(20, 5))
            found[f"{name}, {target}"] = row
            ratios[f"{name}, {target}, to fused"] = row["bundle"] / row["fused"]
            ratios[f"{name}, {target}, to foreach"] = row["bundle"] / row["foreach"]
    return {"milliseconds": found, "ratios": ratios, "goals": GOALS}

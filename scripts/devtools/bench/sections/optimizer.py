"""The update of AdamW alone: a bundle beside ``torch.optim`` with ``fused=True`` and ``foreach=True``."""

from __future__ import annotations

from typing import Any

from devtools.bench.runner import PROCESSES, Bench, network

CASES = {
    "gpt_plain": network("gpt_plain"),
    "resnet50": network("resnet50"),
    "parameters_1000": network("parameters", options={"count": 1000}),
}
GOAL = 1.0
"""The time of ``fused=True``."""


def measure(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for name, case in list(CASES.items())[-bench.times(3) :]:
        for target in ("cpu", "portable"):
            bundle = bench.bundle(case, "--target", target, "--method", "train", "--optimizer", "adamw", "--no-check")
            row = bench.json(PROCESSES / "optimizer.py", bundle, bench.times(20, 5))
            found[f"{name}, {target}"] = row
            ratios[f"{name}, {target}"] = row["bundle"] / row["fused"]
    return {"milliseconds": found, "ratios": ratios}

"""Bytes that a step saves for its backward, with and without checkpoints and memory budgets, for the same gradients."""

from __future__ import annotations

from typing import Any

from devtools.bench.runner import PROCESSES, Bench

GOAL = 1.0


def measure(bench: Bench) -> dict[str, Any]:
    models = {"blocks": ("portable",)} if bench.quick else {"blocks": ("cpu", "portable"), "gpt": ("portable",)}
    found: dict[str, Any] = {}
    for name, targets in models.items():
        words = [word for target in targets for word in ("--target", target)]
        found[name] = bench.json(PROCESSES / "recompute.py", "--model", name, *words, one_core=False)
    return {
        "saved_bytes": found,
        "ratios": {
            f"{name}, {variant}, {target}": figures[target] / figures["compile"]
            for name, variants in found.items()
            for variant, figures in variants.items()
            if figures["compile"]  # with a budget of 0 torch.compile may save nothing but what the caller holds
            for target in models[name]
        },
        "ratios_to_everything_saved": {
            f"{name}, {variant}, {kind}": variants[variant][kind] / variants["everything saved"][kind]
            for name, variants in found.items()
            for variant in variants
            for kind in ("eager", "compile", *models[name])
        },
    }

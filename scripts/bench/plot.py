"""Draws results/*.json as results/*.png: one small bar chart for start, step and memory. Needs matplotlib."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).resolve().parent / "results"
COLORS = {
    "eager": "#9aa5b1",
    "torch.compile, cold cache": "#e8a87c",
    "torch.compile, warm cache": "#d9703c",
    "torch.compile": "#d9703c",
    "bundle, portable": "#8ec5c0",
    "bundle, cpu": "#2a7f78",
}
NAMES = {
    "compile_cold": "torch.compile, cold cache",
    "compile_warm": "torch.compile, warm cache",
    "compile": "torch.compile",
    "bundle_portable": "bundle, portable",
    "bundle_cpu": "bundle, cpu",
    "portable": "bundle, portable",
    "cpu": "bundle, cpu",
    "eager": "eager",
}


def main() -> None:
    for name, draw in {"start": start, "step": step, "memory": memory}.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            draw(json.loads(path.read_text()))
            plt.savefig(RESULTS / f"{name}.png", dpi=80, pil_kwargs={"optimize": True})
            plt.close()


def start(result: dict[str, Any]) -> None:
    panels = {
        name: {NAMES[k]: found[k]["t_from_import_to_first_step"] for k in NAMES if k in found}
        for name, found in result["examples"].items()
    }
    bars("After `import torch`, to the end of the first training step", panels, "seconds", log=True)


def step(result: dict[str, Any]) -> None:
    panels = {
        case.removesuffix(", one thread"): {NAMES[kind]: value * 1e3 for kind, value in found["seconds"].items()}
        for case, found in result["cases"].items()
        if case.endswith("one thread")
    }
    bars("A training step (forward and backward), one thread", panels, "milliseconds")


def memory(result: dict[str, Any]) -> None:
    panels = {name: {NAMES[kind]: value / 1e6 for kind, value in found.items()} for name, found in result["peak_bytes"].items()}
    bars("Peak memory of a training step", panels, "megabytes")


def bars(title: str, panels: dict[str, dict[str, float]], unit: str, *, log: bool = False) -> None:
    figure, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 2.4), layout="constrained", squeeze=False)
    figure.suptitle(title, fontsize=11)
    for axis, (name, values) in zip(axes[0], panels.items(), strict=True):
        names = list(values)[::-1]
        drawn = axis.barh(names, [values[n] for n in names], color=[COLORS[n] for n in names], log=log)
        axis.bar_label(drawn, fmt="%.3g", padding=3, fontsize=8)
        axis.set_title(name.replace("_", ", "), fontsize=9)
        axis.set_xlabel(unit, fontsize=8)
        axis.tick_params(labelsize=8)
        axis.margins(x=0.22)
        axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()

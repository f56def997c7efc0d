"""Draws results as small pictures: bars of contenders for each network, lines for growth. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

from devtools.bench import cells

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLORS = {
    "eager": "#9aa5b1",
    "export": "#c5b8d8",
    "aoti": "#c5b8d8",
    "aot_compile": "#8f7bb3",
    "compile_cold": "#e8a87c",
    "compile_warm": "#d9703c",
    "compile": "#d9703c",
    "bundle_portable": "#8ec5c0",
    "portable": "#8ec5c0",
    "bundle_cpu": "#2a7f78",
    "cpu": "#2a7f78",
}
Panels = Mapping[str, Mapping[str, float]]


def draw(results: cells.Results, folder: Path) -> None:
    for name, make in PICTURES.items():
        if name in results:
            make(results[name])
            plt.savefig(folder / f"{name}.png", dpi=80, pil_kwargs={"optimize": True})
            plt.close()


def _start(result: Mapping[str, Any]) -> None:
    panels = {
        cells.NETWORKS[name]: {kind: network["train"][kind][cells.WHOLE] for kind in COLORS if kind in network["train"]}
        for name, network in result["networks"].items()
    }
    _bars("After `import torch`, to the end of the first training step", panels, "seconds", log=True)


def _step(result: Mapping[str, Any]) -> None:
    panels = {
        title.removesuffix(", one thread"): {kind: value * 1e3 for kind, value in found["seconds"].items()}
        for title, found in result["cases"].items()
        if title.endswith("one thread") and "with" not in title
    }
    _bars("A training step (forward and backward), one thread", panels, "milliseconds")


def _memory(result: Mapping[str, Any]) -> None:
    panels = {
        cells.NETWORKS[name]: {kind: value / 1e6 for kind, value in found.items()} for name, found in result["peak_bytes"].items()
    }
    _bars("Peak memory of a training step", panels, "megabytes")


def _build(result: Mapping[str, Any]) -> None:
    panels = {
        cells.NETWORKS[name]: {"compile_cold": found["compile_seconds"], "cpu": found["build_seconds"]}
        for name, found in result["networks"].items()
    }
    _bars("Compiling from nothing: one step of torch.compile, or a build", panels, "seconds")


def _scale(result: Mapping[str, Any]) -> None:
    figures = {
        "build, s": lambda found: found["compile_and_trace_seconds"],
        "bundle beyond the weights, MB": lambda found: (found["bytes"]["bundle"] - found["bytes"]["weights"]) / 1e6,
        "load, ms": lambda found: found["load_seconds"] * 1e3,
        "step, ms": lambda found: found["step_seconds"] * 1e3,
    }
    _, axes = _panels(len(figures), "What grows with the nodes of the graphs (the straight line: in proportion)")
    for axis, (title, value) in zip(axes, figures.items(), strict=True):
        for series, sizes in result["series"].items():
            nodes = [found["nodes"] for found in sizes.values()]
            axis.plot(nodes, [value(found) for found in sizes.values()], marker="o", markersize=3, label=series)
        largest = result["series"]["portable"]
        last = list(largest.values())[-1]
        ends = [next(iter(largest.values()))["nodes"], last["nodes"]]
        axis.plot(ends, [value(last) * end / last["nodes"] for end in ends], color="#bbbbbb", linewidth=1, zorder=0)
        axis.set(xscale="log", yscale="log")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("nodes", fontsize=8)
    axes[0].legend(fontsize=7)


def _weights(result: Mapping[str, Any]) -> None:
    figures = {
        "load, ms": ("load_seconds", 1e3),
        "first call, ms": ("first_call_seconds", 1e3),
        "resident after load, MB": ("resident_bytes", 1e-6),
    }
    _, axes = _panels(len(figures), "What does not grow with the weights")
    for axis, (title, (key, factor)) in zip(axes, figures.items(), strict=True):
        sizes = result["megabytes"]
        axis.plot(
            [int(size) for size in sizes], [found[key] * factor for found in sizes.values()], marker="o", color=COLORS["cpu"]
        )
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("megabytes of weights", fontsize=8)


def _share(result: Mapping[str, Any]) -> None:
    figures = {"weights in memory, MB": ("weights_pss_bytes", 1e-6), "until all have run, s": ("seconds", 1.0)}
    _, axes = _panels(len(figures), f"Processes that load {cells.NETWORKS[result['network']]} at once")
    for axis, (title, (key, factor)) in zip(axes, figures.items(), strict=True):
        counts = result["processes"]
        axis.bar(list(counts), [found[key] * factor for found in counts.values()], color=COLORS["cpu"])
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("processes", fontsize=8)


PICTURES = {
    "start": _start,
    "step": _step,
    "memory": _memory,
    "build": _build,
    "scale": _scale,
    "weights": _weights,
    "share": _share,
}


def _bars(title: str, panels: Panels, unit: str, *, log: bool = False) -> None:
    _, axes = _panels(len(panels), title)
    for axis, (name, values) in zip(axes, panels.items(), strict=True):
        kinds = list(values)[::-1]
        names = [cells.KINDS[kind].replace("`", "") for kind in kinds]
        drawn = axis.barh(names, [values[kind] for kind in kinds], color=[COLORS[kind] for kind in kinds], log=log)
        axis.bar_label(drawn, fmt="%.3g", padding=3, fontsize=8)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel(unit, fontsize=8)
        axis.margins(x=0.22)


def _panels(count: int, title: str) -> tuple[Any, list[Any]]:
    """A figure with ``count`` plots, three in a row."""
    columns = min(count, 3)
    rows = -(-count // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.6 * columns, 2.6 * rows), layout="constrained", squeeze=False)
    figure.suptitle(title, fontsize=11)
    flat = list(axes.flat)
    for axis in flat[count:]:
        axis.set_visible(False)
    for axis in flat:
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, flat[:count]

"""The short tables: the README's rows, and the overview of docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from .cells import NETWORKS, WHOLE, Results, size, table, time, times

README_ROWS = {
    "first step after `import torch`, digits": "first training step after `import torch`, small CNN",
    "first step after `import torch`, GPT-2 small": "first training step after `import torch`, GPT-2 small",
    "a step, GPT-2 small, batch 1": "a later step, GPT-2 small",
    "peak memory of a step, GPT-2 small": "peak memory of a step, GPT-2 small",
}
"""Rows of the overview that the README shows, and what it calls them."""


def short(results: Results) -> str:
    """The README's rows, without the columns that the README does not explain."""
    rows = {row[0]: row[1:4] for row in _overview_rows(results)}
    lines = [[title, *rows[name]] for name, title in README_ROWS.items()]
    parts = [table(["", "eager", "`torch.compile`", "bundle"], lines), _overview_note(results)]
    if "networks" in results:
        parts.insert(1, _networks_sentence(results["networks"]))
    return "\n\n".join(parts)


def _networks_sentence(result: Mapping[str, Any]) -> str:
    """Ratios to the faster of eager and ``torch.compile``, which are the table's other columns."""
    ratios = sorted(result["ratios"].values())
    kinds = f"[{_kinds(result)} kinds of networks](docs/performance/networks.md)"
    return f"A step of {kinds} takes {ratios[0]:.2f} to {ratios[-1]:.2f} of the faster of both (median {median(ratios):.2f})."


def _kinds(result: Mapping[str, Any]) -> int:
    return len({title.rpartition(", ")[0] for title in result["ratios"]})


def overview(results: Results) -> str:
    """A row for each network, for the most important benchmarks: start, step, memory, build."""
    head = ["", "eager", "`torch.compile`", "bundle", "ratio", "goal"]
    return f"{table(head, _overview_rows(results))}\n\n{_overview_note(results)}"


def _overview_rows(results: Results) -> list[list[str]]:
    return [row for name, make in _SHORT.items() if name in results for row in make(results[name])]


def _overview_note(results: Results) -> str:
    """The newest result's date and torch, and all processors: rows are of several runs."""
    shown = [results[name] for name in _SHORT if name in results]
    newest = max(shown, key=lambda result: str(result["date"]))
    processors = " or ".join(sorted({result["machine"]["cpu"] for result in shown}))
    return f"torch {newest['versions']['torch']}, {processors}; by `scripts/bench/run`, {newest['date'][:10]}."


def _short_import(result: Mapping[str, Any]) -> Iterator[list[str]]:
    seconds = result["seconds"]
    title = "import: `torch` against `from aotpack_loader import load`"
    yield [title, "", time(seconds["torch"]), time(seconds["load"]), times(result["ratios"]["load"]), f"≤ {result['goal']:g}"]


def _short_start(result: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, network in result["networks"].items():
        found = {kind: one[WHOLE] for kind, one in network["train"].items()}
        compiled = f"{time(found['compile_warm'])} (cold {time(found['compile_cold'])})"
        goal = result["goals"].get(name)
        yield [
            f"first step after `import torch`, {NETWORKS[name]}",
            time(found["eager"]),
            compiled,
            time(found["bundle_cpu"]),
            f"{times(result['ratios'][name])} faster",
            "" if goal is None else f"≥ {goal:g}",
        ]


def _short_step(result: Mapping[str, Any]) -> Iterator[list[str]]:
    for title, found in result["cases"].items():
        name, _, threads = title.rpartition(", ")
        if threads == "one thread" and "with" not in name and "inference" not in name:
            seconds = [time(found["seconds"][kind]) for kind in ("eager", "compile", "cpu")]
            yield [f"a step, {name}", *seconds, times(found["ratio_to_compile"]["cpu"]), f"≤ {result['goal']:g}"]


def _short_networks(result: Mapping[str, Any]) -> Iterator[list[str]]:
    """Median and largest ratio to the faster of eager and ``torch.compile``, for all rows with one thread and with all."""
    for threads in ("one thread", "all threads"):
        ratios = [ratio for title, ratio in result["ratios"].items() if title.endswith(f", {threads}")]
        for name, value in (("median", median(ratios)), ("largest", max(ratios))):
            title = f"a step, {_kinds(result)} kinds of networks, {threads}, {name}"
            yield [title, "", "", "", times(value), f"≤ {result['goal']:g}"]


def _short_memory(result: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, found in result["peak_bytes"].items():
        sizes = [size(found[kind]) for kind in ("eager", "compile", "cpu")]
        yield [f"peak memory of a step, {NETWORKS[name]}", *sizes, times(result["ratios"][name]), f"≤ {result['goal']:g}"]


def _short_build(result: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, found in result["networks"].items():
        seconds = ["", time(found["compile_seconds"]), time(found["build_seconds"])]
        yield [f"compiling from nothing, {NETWORKS[name]}", *seconds, times(result["ratios"][name]), f"≤ {result['goal']:g}"]


_SHORT = {
    "import": _short_import,
    "start": _short_start,
    "step": _short_step,
    "networks": _short_networks,
    "memory": _short_memory,
    "build": _short_build,
}

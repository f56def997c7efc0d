"""Formats results as the Markdown tables of docs/performance/ and docs/xla.md: one or two for each benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devtools.machine import row_measured_on

from .cells import KINDS, NETWORKS, WHOLE, kind_name, network_name, share, size, table, time, time_of, times


def start(result: Mapping[str, Any]) -> str:
    networks = result["networks"]
    figures = {"from process start": "t_from_spawn_to_first_step", "after `import torch`": WHOLE, "first step": "t_first_step"}
    head = ["", *(f"{NETWORKS[name]}, {title}" for name in networks for title in figures)]
    rows = []
    for what, suffix in (("train", ""), ("infer", ", inference")):
        for kind in dict.fromkeys(kind for network in networks.values() for kind in network[what]):
            found = [network[what].get(kind) for network in networks.values()]
            rows.append([kind_name(kind) + suffix, *(time_of(one, figure) for one in found for figure in figures.values())])
    phases = {name: network["phases_seconds"] for name, network in networks.items()}
    parts = [[part, *(time(phases[name][part]) for name in networks)] for part in next(iter(phases.values()))]
    text = [table(head, rows), table(["start of a bundle, cpu", *(NETWORKS[name] for name in networks)], parts)]
    for name, network in networks.items():
        text += [
            f"{NETWORKS[name]}: {kind_name(kind)} does not take part: `{reason}`" for kind, reason in network["left_out"].items()
        ]
    return "\n\n".join(text)


def step(result: Mapping[str, Any]) -> str:
    kinds = dict.fromkeys(kind for found in result["cases"].values() for kind in found["seconds"])
    head = ["", *map(kind_name, kinds), "bundle / `torch.compile`", "bundle / eager", "measured"]
    rows = [
        [
            title,
            *(time(found["seconds"][kind]) if kind in found["seconds"] else "" for kind in kinds),
            times(found["ratio_to_compile"]["cpu"]),
            times(found["seconds"]["cpu"] / found["seconds"]["eager"]),
            row_measured_on(found),
        ]
        for title, found in result["cases"].items()
    ]
    return table(head, rows)


def networks(result: Mapping[str, Any]) -> str:
    """A row for each network: the three contenders with each number of threads, and the bundle beside the faster one."""
    contenders = ("eager", "compile", "cpu")
    threads = [count for count in ("one thread", "all threads") if any(title.endswith(count) for title in result["cases"])]
    head = ["", *(f"{KINDS[kind]}, {count}" for count in threads for kind in contenders)]
    head += [*(f"bundle / the better, {count}" for count in threads), "measured"]
    rows = []
    for name in dict.fromkeys(title.rpartition(", ")[0] for title in result["cases"]):
        found = [result["cases"].get(f"{name}, {count}", {}) for count in threads]
        seconds = [one.get("seconds", {}) for one in found]
        cells = [time(one[kind]) if kind in one else "" for one in seconds for kind in contenders]
        ratios = [times(one["ratio_to_better"]) if "ratio_to_better" in one else "failed" for one in found]
        rows.append([network_name(name), *cells, *ratios, row_measured_on(found[-1])])
    return table(head, rows)


def alone(result: Mapping[str, Any]) -> str:
    kinds = dict.fromkeys(kind for found in result["cases"].values() for kind in found["seconds"])
    head = [
        "",
        *map(kind_name, kinds),
        "bundle / `torch.compile`",
        *(f"peak of the process, {kind_name(kind)}" for kind in kinds),
    ]
    rows = [
        [
            title,
            *(time(found["seconds"][kind]) for kind in kinds),
            times(found["ratio_to_compile"]["cpu"]),
            *(size(found["peak_rss_bytes"][kind]) for kind in kinds),
        ]
        for title, found in result["cases"].items()
    ]
    return table(head, rows)


def overhead(result: Mapping[str, Any]) -> str:
    rows = [["**calls in native code**", f"{result['step_microseconds']:.1f}"]]
    beside = result["beside_microseconds"].items()
    rows += [[f"{part}, beside the compiled code and the engine", f"{value:.1f}"] for part, value in beside]
    for count, found in result.get("tensors", {}).items():
        spent = sum(found["beside_microseconds"].values())
        rows.append([f"both, of a call that takes {count} tensors (goal: {found['goal']:.0f})", f"{spent:.1f}"])
    rows.append(["**calls in Python, with the clocks**", f"{result['step_with_wrappers_microseconds']:.1f}"])
    rows += [[part, f"{value:.1f}"] for part, value in result["parts_microseconds"].items()]
    return table(["a step of tiny, one thread", "µs"], rows)


def optimizer(result: Mapping[str, Any]) -> str:
    rows = []
    for name, found in result["milliseconds"].items():
        model, target = name.split(", ")
        ratios = [times(found["bundle"] / found[way]) for way in ("fused", "foreach")]
        rows.append([network_name(model), f"`{target}`", *(time(value / 1e3) for value in found.values()), *ratios])
    head = ["AdamW, one thread", "target", "bundle", "eager", "`foreach`", "`fused`", "bundle / `fused`", "bundle / `foreach`"]
    return table(head, rows)


def first_update(result: Mapping[str, Any]) -> str:
    figures = {"with `import torch`": "t_from_spawn_to_first_step", "without": "t_from_import_to_first_step"}
    kinds = {"eager": "eager", "compile": "`torch.compile`", "bundle": "bundle, cpu"}
    head = ["", *(f"{title}, {kind}" for title in figures for kind in kinds.values())]
    head += ["bundle / eager, with", "bundle / warm `torch.compile`, without"]
    rows = []
    for name, found in result["seconds"].items():
        cells = [time(found[kind][figure]) for figure in figures.values() for kind in kinds]
        ratios = times(result["ratios"][name]), f"1 / {1 / result['ratios_to_warm_compile'][name]:.0f}"
        rows.append([network_name(name), *cells, *ratios])
    return table(head, rows)


def memory(result: Mapping[str, Any]) -> str:
    kinds = dict.fromkeys(kind for found in result["peak_bytes"].values() for kind in found)
    rows = [
        [NETWORKS[name], *(size(found[kind]) if kind in found else "" for kind in kinds), times(result["ratios"][name])]
        for name, found in result["peak_bytes"].items()
    ]
    text = table(["peak of a step", *map(kind_name, kinds), "bundle / `torch.compile`"], rows)
    budgets = [
        [budget, size(found["compile"]), size(found["cpu"]), times(found["cpu"] / found["compile"])]
        for budget, found in result["peak_bytes_by_budget"].items()
    ]
    head = ["GPT, 4 layers, memory budget", "`torch.compile`", "bundle, cpu", "bundle / `torch.compile`"]
    whole = [
        [NETWORKS[name], *(size(found[kind]) for kind in found), times(result["ratios"][f"{name}, with AdamW"])]
        for name, found in result.get("peak_bytes_of_whole_steps", {}).items()
    ]
    steps = table(["peak of a step with AdamW", "eager, fused", "`torch.compile`", "bundle, cpu", "bundle / the better"], whole)
    return "\n\n".join([text, *([steps] if whole else []), table(head, budgets)])


def live(result: Mapping[str, Any]) -> str:
    kinds = ("eager", "compile", "cpu")
    rows = [
        [network_name(name), *(size(found[kind]) for kind in kinds), times(result["ratios"][name])]
        for name, found in result["peak_bytes"].items()
    ]
    return table(["live memory of a step", *map(kind_name, kinds), "bundle / the better"], rows)


def recompute(result: Mapping[str, Any]) -> str:
    kinds = ("eager", "compile", "cpu", "portable")
    rows = [
        [f"{name}, {variant}", *(size(found[kind]) if kind in found else "" for kind in kinds)]
        for name, variants in result["saved_bytes"].items()
        for variant, found in variants.items()
    ]
    return table(["kept for the backward", *map(kind_name, kinds)], rows)


def build(result: Mapping[str, Any]) -> str:
    networks = result["networks"].items()
    rows = [
        [
            NETWORKS[name],
            time(found["compile_seconds"]),
            time(found["build_seconds"]),
            times(found["build_seconds"] / found["compile_seconds"]),
            time(found["rebuild_seconds"]),
            size(found["compile_peak_bytes"]),
            size(found["build_peak_bytes"]),
        ]
        for name, found in networks
    ]
    head = ["", "`torch.compile`, cold", "`aotpack build`", "ratio", "unchanged again", "peak, `torch.compile`", "peak, build"]
    kinds = ("bundle", "weights", "graphs", "graphs, uncompressed", "code", "code, uncompressed")
    sizes = [
        [
            NETWORKS[name],
            *(size(found["bytes"].get(kind, 0)) for kind in kinds),
            share(found["bytes"]["bundle"], found["bytes"]["weights"]),
        ]
        for name, found in networks
    ]
    return "\n\n".join([table(head, rows), table(["", *kinds, "beyond the weights"], sizes)])


def scale(result: Mapping[str, Any]) -> str:
    head = ["target", "layers", "nodes", "build", "a node", "bundle", "graphs", "code", "load", "step", "eager step"]
    rows = [
        [
            series,
            layers,
            f"{found['nodes']:,}",
            time(found["compile_and_trace_seconds"]),
            time(found["compile_and_trace_seconds"] / found["nodes"]),
            size(found["bytes"]["bundle"]),
            size(found["bytes"]["graphs"]),
            size(found["bytes"].get("code", 0)),
            time(found["load_seconds"]),
            time(found["step_seconds"]),
            time(found["eager_step_seconds"]),
        ]
        for series, sizes in result["series"].items()
        for layers, found in sizes.items()
    ]
    return table(head, rows)


def depth(result: Mapping[str, Any]) -> str:
    head = ["layers", "`torch.compile`, cold", "build", "`--no-regional`", "build, ratio", "`--no-regional`, ratio"]
    head += ["code", "code, `--no-regional`", "step", "step, `--no-regional`"]
    rows = [
        [
            layers,
            time(found["compile_seconds"]),
            time(found["build_seconds"]),
            time(found["whole_seconds"]),
            times(found["build_seconds"] / found["compile_seconds"]),
            times(found["whole_seconds"] / found["compile_seconds"]),
            size(found["build_bytes"]["code"]),
            size(found["whole_bytes"]["code"]),
            time(found["build_step_seconds"]),
            time(found["whole_step_seconds"]),
        ]
        for layers, found in result["layers"].items()
    ]
    return table(head, rows)


def weights(result: Mapping[str, Any]) -> str:
    rows = [
        [
            f"{int(megabytes):,} MB",
            time(found["load_seconds"]),
            time(found["first_call_seconds"]),
            size(found["resident_bytes"]),
            size(found["resident_after_call_bytes"]),
        ]
        for megabytes, found in result["megabytes"].items()
    ]
    return table(["weights", "load", "first call", "resident after load", "after the call"], rows)


def share_of(result: Mapping[str, Any]) -> str:
    rows = [
        [
            count,
            time(found["seconds"]),
            time(found["load_seconds"]),
            size(found["weights_bytes"]),
            size(found["weights_rss_bytes"]),
            size(found["weights_pss_bytes"]),
            size(found["weights_private_dirty_bytes"]),
            size(found["process_pss_bytes"]),
        ]
        for count, found in result["processes"].items()
    ]
    head = ["processes", "until all have run", "slowest load", "weights", "mapped by all", "in memory", "private", "all memory"]
    return table(head, rows)


def goals(result: Mapping[str, Any]) -> str:
    """A row for each network: start beside eager's first step, memory of a step beside the better peer's, build."""
    head = ["", "eager, first step", "bundle, import, load and first step", "ratio", "bundle, first step", "bundle, a step"]
    head += [
        "first touches",
        "tensors, eager",
        "tensors, `torch.compile`",
        "tensors, bundle",
        "ratio",
        "resident set, ratio",
        "`torch.compile`, cold",
        "build",
        "ratio",
        "measured",
    ]
    rows, ratios = [], result["ratios"]
    for name, found in result["networks"].items():
        start, tensors, build = found["start_seconds"], found["tensor_bytes"], found["build_seconds"]
        row = [NETWORKS[name], time(start["eager, first step"]), time(start["bundle, import, load and first step"])]
        row += [times(ratios[f"start, {name}"]), time(start["bundle, first step"]), time(start["bundle, a step"])]
        row.append(time(sum(found["first_touch_seconds"].values())))
        row += [*(size(tensors[kind]) for kind in ("eager", "compile", "bundle")), times(ratios[f"memory, {name}"])]
        peaks = found["peak_bytes"]
        row.append(times(peaks["bundle"] / min(peaks["eager"], peaks["compile"])))
        builds = [time(build["compile"]), time(build["bundle"]), times(ratios[f"build, {name}"])]
        rows.append([*row, *builds, row_measured_on(found)])
    return table(head, rows)


def variants(result: Mapping[str, Any]) -> str:
    levels = result["levels_of_this_machine"]
    rows = [
        [NETWORKS[name], *(time(found["seconds"][f"cpu:{level}"]) for level in levels), time(found["seconds"]["compile"])]
        + [times(result["ratios"][f"{name}, {level}"]) for level in levels[1:]]
        + [f"`{found['taken_at_load']}`"]
        for name, found in result["networks"].items()
    ]
    gains = [f"{level} / {levels[0]}" for level in levels[1:]]
    return table(
        ["a step, one thread", *(f"`cpu:{level}`" for level in levels), "`torch.compile`", *gains, "taken at load"], rows
    )


def xla(result: Mapping[str, Any]) -> str:
    found, ratios = result["contenders"], result["ratios"]
    peers = [kind for kind in ("lazy", "openxla") if kind in found]
    head = ["", "imports", "make or load", "first step", "of both XLA's compiler", "and the rest"]
    head += [f"start against {KINDS[p]}" for p in peers]
    head += ["a step", *(f"step against {KINDS[p]}" for p in peers)]
    rows = [
        [
            KINDS[kind],
            *(time(one["seconds"][part]) for part in ("import", "make", "first step")),
            time(one["xla_compile_seconds"]) if one["xla_compile_seconds"] else "none",
            time(one["start_seconds"] - one["xla_compile_seconds"]),
            *(f"{times(ratios[name])} faster" if (name := f"{kind}, start against {p}") in ratios else "" for p in peers),
            time(one["step_seconds"]),
            *(times(ratios[name]) if (name := f"{kind}, step against {p}") in ratios else "" for p in peers),
        ]
        for kind, one in found.items()
    ]
    return table(head, rows)


def xla_scan(result: Mapping[str, Any]) -> str:
    found = result["rows"]
    forms = list(next(iter(found.values())))
    figures = {
        "HLO": ("hlo_bytes", size),
        "build": ("build_seconds", time),
        "load": ("load_seconds", time),
        "of it XLA's compiler": ("xla_compile_seconds", time),
        "a step": ("step_seconds", time),
    }
    head = ["rows", *(f"{title}, {form}" for title in figures for form in forms)]
    rows = [
        [count, *(show(by_form[form][figure]) for figure, show in figures.values() for form in forms)]
        for count, by_form in found.items()
    ]
    return table(head, rows)


PAGES = {
    "performance.md": {"goals": goals},
    "performance/start.md": {"start": start, "first_update": first_update, "weights": weights, "share": share_of},
    "performance/steps.md": {"step": step, "alone": alone, "overhead": overhead, "optimizer": optimizer, "variants": variants},
    "performance/networks.md": {"networks": networks, "whole_steps": networks},
    "performance/memory.md": {"memory": memory, "live": live, "recompute": recompute},
    "performance/build.md": {"build": build, "scale": scale, "depth": depth},
    "xla.md": {"xla": xla, "xla_scan": xla_scan},
}
"""Page of docs/ to its benchmarks, each with what makes its part."""

"""Formats results as Markdown tables.

They are the README's five rows, the overview of docs/performance.md, and one or two for each
benchmark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Results = Mapping[str, Mapping[str, Any]]

NETWORKS = {
    "tiny": "tiny",
    "digits": "digits",
    "digits-1024": "digits, batch 1024",
    "digits-dynamic": "digits",
    "gpt": "GPT, 4 layers",
    "gpt2": "GPT-2 small",
    "resnet50": "ResNet-50",
}
KINDS = {
    "eager": "eager",
    "compile_cold": "`torch.compile`, cold",
    "compile_warm": "`torch.compile`, warm",
    "compile": "`torch.compile`",
    "aot_compile": "`aot_compile`",
    "export": "`torch.export`",
    "aoti": "AOTInductor",
    "bundle_portable": "bundle, portable",
    "bundle_cpu": "bundle, cpu",
    "portable": "bundle, portable",
    "cpu": "bundle, cpu",
    "bundle": "bundle, `xla`",
    "bundle_compiled": "bundle, `xla:cpu`",
    "lazy": "torch_xla",
    "openxla": '`backend="openxla"`',
}
NETWORKS |= {
    "recommender": "recommender, 26 tables of 1,000 by 16",
    "encoder": "`nn.TransformerEncoder`, 3 layers of 128, dropout",
    "resnet": "ResNet, 32 by 32, batch 32",
    "llama": "Llama, 6 layers of 256, batch 4 by 64",
    "graph": "graph network, 500 nodes, 3,000 edges",
    "lstm": "LSTM, 2 layers of 64, batch 16 by 32",
    "gru": "GRU, 2 layers of 64, batch 16 by 32",
    "lstm_wide": "LSTM, bidirectional, 256, batch 16 by 16",
    "text": "embedding, 1-D convolution, dropout",
    "embedding_bag": "`nn.EmbeddingBag`",
    "experts": "mixture of 4 experts",
    "attention_512": "attention over 512 positions",
    "attention_2048": "attention over 2,048 positions",
    "cross_attention": "`nn.MultiheadAttention`, dropout",
    "vision_transformer": "vision transformer, 3 layers of 128",
    "bf16_encoder": "encoder under bf16 autocast",
    "bf16_mlp": "perceptron under bf16 autocast",
    "convolutions_3d": "3-D convolutions",
    "depthwise": "depthwise convolutions",
    "channels_last": "ResNet, channels-last",
    "unet": "U-Net of diffusion",
    "tiny_mlp": "perceptron, 16-32-4",
    "tiny_batch_norm": "perceptron, 16-32-4, BatchNorm",
    "dropout_mlp": "perceptron, 256-512-512-10, dropout",
    "parameters_1000": "1,000 parameters of 8",
    "dynamic_digits": "digits, dynamic batch",
    "dynamic_encoder": "encoder, dynamic batch",
}
WHOLE = "t_from_import_to_first_step"


# ---------------------------------------------------------------- README


README_ROWS = {
    "first step after `import torch`, digits": "first training step after `import torch`, small CNN",
    "first step after `import torch`, GPT-2 small": "first training step after `import torch`, GPT-2 small",
    "a step, digits, batch 64": "a later step, small CNN, batch 64",
    "a step, GPT-2 small, batch 1": "a later step, GPT-2 small",
    "peak memory of a step, GPT-2 small": "peak memory of a step, GPT-2 small",
}
"""Rows of the overview that the README shows, and what it calls them."""


def short(results: Results) -> str:
    """The README's rows, without the columns that the README does not explain."""
    rows = {row[0]: row[1:4] for row in _overview_rows(results)}
    lines = [[title, *rows[name]] for name, title in README_ROWS.items()]
    return f"{table(['', 'eager', '`torch.compile`', 'bundle'], lines)}\n\n{_overview_note(results)}"


def overview(results: Results) -> str:
    """A row for each network, for the most important benchmarks: start, step, memory, build."""
    head = ["", "eager", "`torch.compile`", "bundle", "ratio", "goal"]
    return f"{table(head, _overview_rows(results))}\n\n{_overview_note(results)}"


def _overview_rows(results: Results) -> list[list[str]]:
    return [row for name, make in _SHORT.items() if name in results for row in make(results[name])]


def _overview_note(results: Results) -> str:
    newest = max((results[name] for name in _SHORT if name in results), key=lambda result: str(result["date"]))
    machine, versions = newest["machine"], newest["versions"]
    return f"torch {versions['torch']}, {machine['cpu']}; by `scripts/bench/run`, {newest['date'][:10]}."


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
    "memory": _short_memory,
    "build": _short_build,
}


# ---------------------------------------------------------------- docs/performance.md


def start(result: Mapping[str, Any]) -> str:
    networks = result["networks"]
    figures = {"from process start": "t_from_spawn_to_first_step", "after `import torch`": WHOLE, "first step": "t_first_step"}
    head = ["", *(f"{NETWORKS[name]}, {title}" for name in networks for title in figures)]
    rows = []
    for what, suffix in (("train", ""), ("infer", ", inference")):
        for kind in dict.fromkeys(kind for network in networks.values() for kind in network[what]):
            found = [network[what].get(kind) for network in networks.values()]
            rows.append([_kind(kind) + suffix, *(_time_of(one, figure) for one in found for figure in figures.values())])
    phases = {name: network["phases_seconds"] for name, network in networks.items()}
    parts = [[part, *(time(phases[name][part]) for name in networks)] for part in next(iter(phases.values()))]
    text = [table(head, rows), table(["start of a bundle, cpu", *(NETWORKS[name] for name in networks)], parts)]
    for name, network in networks.items():
        text += [
            f"{NETWORKS[name]}: {_kind(kind)} does not take part: `{reason}`" for kind, reason in network["left_out"].items()
        ]
    return "\n\n".join(text)


def step(result: Mapping[str, Any]) -> str:
    kinds = dict.fromkeys(kind for found in result["cases"].values() for kind in found["seconds"])
    head = ["", *map(_kind, kinds), "bundle / `torch.compile`", "bundle / eager"]
    rows = [
        [
            title,
            *(time(found["seconds"][kind]) if kind in found["seconds"] else "" for kind in kinds),
            times(found["ratio_to_compile"]["cpu"]),
            times(found["seconds"]["cpu"] / found["seconds"]["eager"]),
        ]
        for title, found in result["cases"].items()
    ]
    return table(head, rows)


def networks(result: Mapping[str, Any]) -> str:
    """A row for each network: the three contenders with one thread and with all, and the bundle beside the faster one."""
    contenders, threads = ("eager", "compile", "cpu"), ("one thread", "all threads")
    head = ["", *(f"{KINDS[kind]}, {count}" for count in threads for kind in contenders)]
    head += [f"bundle / the better, {count}" for count in threads]
    rows = []
    for name in dict.fromkeys(title.rpartition(", ")[0] for title in result["cases"]):
        found = [result["cases"].get(f"{name}, {count}", {}) for count in threads]
        seconds = [one.get("seconds", {}) for one in found]
        cells = [time(one[kind]) if kind in one else "" for one in seconds for kind in contenders]
        ratios = [times(one["ratio_to_better"]) if "ratio_to_better" in one else "failed" for one in found]
        rows.append([NETWORKS.get(name, name.replace("_", " ")), *cells, *ratios])
    return table(head, rows)


def alone(result: Mapping[str, Any]) -> str:
    kinds = dict.fromkeys(kind for found in result["cases"].values() for kind in found["seconds"])
    head = ["", *map(_kind, kinds), "bundle / `torch.compile`", *(f"peak of the process, {_kind(kind)}" for kind in kinds)]
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


def memory(result: Mapping[str, Any]) -> str:
    kinds = dict.fromkeys(kind for found in result["peak_bytes"].values() for kind in found)
    rows = [
        [NETWORKS[name], *(size(found[kind]) if kind in found else "" for kind in kinds), times(result["ratios"][name])]
        for name, found in result["peak_bytes"].items()
    ]
    text = table(["peak of a step", *map(_kind, kinds), "bundle / `torch.compile`"], rows)
    budgets = [
        [budget, size(found["compile"]), size(found["cpu"]), times(found["cpu"] / found["compile"])]
        for budget, found in result["peak_bytes_by_budget"].items()
    ]
    head = ["GPT, 4 layers, memory budget", "`torch.compile`", "bundle, cpu", "bundle / `torch.compile`"]
    return "\n\n".join([text, table(head, budgets)])


def recompute(result: Mapping[str, Any]) -> str:
    kinds = ("eager", "compile", "cpu", "portable")
    rows = [
        [f"{name}, {variant}", *(size(found[kind]) if kind in found else "" for kind in kinds)]
        for name, variants in result["saved_bytes"].items()
        for variant, found in variants.items()
    ]
    return table(["kept for the backward", *map(_kind, kinds)], rows)


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
    """A row for each network: start beside eager's first step, peak memory beside the better peer's, build."""
    head = ["", "eager, first step", "bundle, import, load and first step", "ratio", "bundle, a step"]
    head += ["peak, eager", "peak, `torch.compile`", "peak, bundle", "ratio", "`torch.compile`, cold", "build", "ratio"]
    rows, ratios = [], result["ratios"]
    for name, found in result["networks"].items():
        start, peaks, build = found["start_seconds"], found["peak_bytes"], found["build_seconds"]
        row = [NETWORKS[name], time(start["eager, first step"]), time(start["bundle, import, load and first step"])]
        row += [times(ratios[f"start, {name}"]), time(start["bundle, a step"])]
        row += [*(size(peaks[kind]) for kind in ("eager", "compile", "bundle")), times(ratios[f"memory, {name}"])]
        rows.append([*row, time(build["compile"]), time(build["bundle"]), times(ratios[f"build, {name}"])])
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


_PERFORMANCE = {
    "start": start,
    "step": step,
    "networks": networks,
    "alone": alone,
    "overhead": overhead,
    "memory": memory,
    "recompute": recompute,
    "build": build,
    "scale": scale,
    "weights": weights,
    "share": share_of,
    "goals": goals,
    "variants": variants,
}
PAGES = {"performance.md": _PERFORMANCE, "xla.md": {"xla": xla, "xla_scan": xla_scan}}
"""Page of docs/ to its benchmarks, each with what makes its part."""


# ---------------------------------------------------------------- cells


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def time(seconds: float) -> str:
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def size(count: float) -> str:
    return f"{count / 1e3:.3g} kB" if count < 0.9995e6 else f"{count / 1e6:.4g} MB"


def times(ratio: float) -> str:
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.2f} times"


def share(whole: float, part: float) -> str:
    """The excess of ``whole`` over ``part``, relative to ``part``."""
    return f"{(whole / part - 1) * 100:.3g} %"


def _kind(kind: str) -> str:
    known, _, detail = kind.partition(", ")
    return f"{KINDS[known]}, {detail}" if detail else KINDS[known]


def _time_of(found: Mapping[str, Any] | None, figure: str) -> str:
    return "" if found is None else time(found[figure])

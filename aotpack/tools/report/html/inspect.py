"""The page of ``aotpack inspect --html``: what a bundle holds. It runs nothing of the bundle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from aotpack_loader.format import schema

from ..describe import (
    blob_rows,
    code_blobs,
    platform_text,
    producer_text,
    requirements_of,
    subclass_types,
    tensor_type,
    total_size,
)
from ..effects import effects
from ..graphs import element_size
from ..memory import StepMemory, step_memory
from ..operations import GraphView, Half, views
from ..optimizers import optimizer_texts
from ..readiness import readiness
from ..signature import argument_rows, mode_text, ranges, result_rows
from ..text import size_text
from .graphs import Texts, graph_data
from .page import Page, Section, fragment, render

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle

_KEPT = 60
"""How many parameters and arguments are listed as saved without a copy."""

Views = Mapping[str, Mapping[Half, GraphView]]


def inspect_page(bundle: Bundle, path: str, attachments: Sequence[Any] = ()) -> str:
    """Return the page of an open bundle as HTML.

    Args:
        bundle: the bundle.
        path: what the user called it.
        attachments: rows with ``type``, ``size``, ``signer``, ``trusted`` and ``digest``.
    """
    calls = [name for name, method in bundle.program.methods.items() if not method.step]
    names = sorted(calls, key=lambda name: (name != "train", name))
    graphs = {name: views(bundle, name) for name in names}
    memory = {name: step_memory(bundle, name, graphs[name]) for name in names}
    sections = [
        Section("overview", "Overview", _overview(bundle, path, graphs, memory)),
        Section(
            "signature",
            "Signature",
            _signature(bundle, names),
            "How to call the model. Names and ranges are those of its author.",
        ),
        Section("state", "State", _state(bundle.program)),
        *_optimizers(bundle.program),
        Section("graphs", "Graphs", _graphs(graphs), "Forward and backward by module. A click opens a module."),
        Section("memory", "Memory", _memory(bundle.program, memory, graphs)),
        Section(
            "effects",
            "Effects",
            _effects(bundle, memory),
            "Mutations, aliases and donations: what a call does beside returning values.",
        ),
        Section("targets", "Targets", _targets(bundle), "Where the model runs. “Here” is the machine that made this page."),
        Section("provenance", "Provenance", _provenance(bundle, attachments)),
    ]
    texts = Texts()
    methods = [{"name": name, **graph_data(graphs[name], texts)} for name in graphs]
    classes = {module.name: _class_name(bundle.program, module) for module in bundle.program.modules}
    data = {
        "graphs": {"texts": texts.all, "methods": methods, "classes": classes},
        "memory": {name: _memory_data(found) for name, found in memory.items()},
    }
    return render(
        Page(
            f"{bundle.program.name}: what is in the bundle",
            bundle.program.name or "bundle",
            bundle.digest,
            sections,
            data,
            ["layout", "graph", "icicle", "memory"],
            ["dagre", "d3-hierarchy", "uplot"],
        )
    )


def _optimizers(program: schema.Program) -> list[Section]:
    found = optimizer_texts(program)
    text = "The step of an optimizer. Each update is compiled code for one parameter and its state."
    return [Section("optimizers", "Optimizers", fragment("inspect/optimizers", optimizers=found), text)] if found else []


def _class_name(program: schema.Program, module: schema.Module) -> str:
    return program.module_classes[module.kind].name.rpartition(".")[2] if module.kind < len(program.module_classes) else ""


def _overview(bundle: Bundle, path: str, graphs: Views, memory: Mapping[str, StepMemory]) -> Markup:
    program = bundle.program
    parameters = [entry for entry in program.state if entry.kind == "parameter" and entry.tied_to is None]
    elements = sum(math.prod(entry.shape) for entry in parameters)
    trained = sum(math.prod(entry.shape) for entry in parameters if entry.requires_grad)
    name = next(iter(graphs))
    counts = " + ".join(f"{len(view.operations):,}" for view in graphs[name].values()) or "?"
    cards = [
        {"value": size_text(total_size(bundle)), "label": f"in {len(bundle.descriptors())} blobs"},
        {
            "value": f"{elements:,}",
            "label": "elements of parameters" if trained == elements else f"elements, {trained:,} trained",
        },
        {
            "value": counts,
            "label": f"operations of {name}, forward + backward" if len(graphs[name]) > 1 else f"operations of {name}",
        },
        {"value": size_text(memory[name].saved_bytes), "label": "saved for the backward"},
        {"value": str(len(bundle.targets)), "label": "target" if len(bundle.targets) == 1 else "targets"},
    ]
    needs = [f"torch {program.requirements.torch}"]
    needs += [f"operators of {name}" for name in program.requirements.operators]
    needs += [f"class {name}" for name in program.requirements.subclasses]
    facts = [
        ("bundle", str(path)),
        ("digest", bundle.digest),
        ("format", f"{program.format.major}.{program.format.minor}"),
        ("built with", producer_text(bundle)),
        ("needs", ", ".join(needs + program.features)),
        ("methods", ", ".join(program.methods)),
        ("self-test", "recorded" if program.self_test is not None else "none"),
    ]
    return fragment("inspect/overview", cards=cards, facts=facts)


def _signature(bundle: Bundle, names: Sequence[str]) -> Markup:
    methods = []
    for name in names:
        method = bundle.program.methods[name]
        tags = [f"captured with {method.captured_with}"] if method.captured_with else []
        tags += [f"autocast {method.autocast}"] if method.autocast else []
        tags += ["draws eager's random numbers"] if method.rng == "eager" else []
        tags += ["deterministic algorithms"] if method.deterministic else []
        methods.append(
            {
                "name": name,
                "serves": list(map(mode_text, method.serves)),
                "tags": tags,
                "ranges": ranges(method),
                "arguments": argument_rows(method),
                "results": result_rows(bundle, method),
                "notes": method.notes,
            }
        )
    return fragment("inspect/signature", methods=methods)


def _state(program: schema.Program) -> Markup:
    entries = []
    for entry in program.state:
        flags = []
        if entry.kind == "parameter":
            flags.append(("trained", "good") if entry.requires_grad else ("frozen", "plain"))
        flags += [(f"tied to {entry.tied_to}", "")] if entry.tied_to is not None else []
        flags += [] if entry.persistent else [("not in the state dict", "warn")]
        flags += [(text, "plain") for text in subclass_types(entry.subclass)]
        elements = math.prod(entry.shape)
        entries.append(
            {
                "name": entry.name,
                "kind": entry.kind,
                "type": tensor_type(entry.dtype, entry.shape),
                "elements": elements,
                "bytes": elements * element_size(entry.dtype),
                "flags": flags,
            }
        )
    return fragment("inspect/state", entries=entries)


def _graphs(graphs: Views) -> Markup:
    located = any(view.located for halves in graphs.values() for view in halves.values())
    missing = [name for name, halves in graphs.items() if not halves]
    return fragment("inspect/graphs", names=list(graphs), located=located or not any(graphs.values()), missing=missing)


def _memory(program: schema.Program, memory: Mapping[str, StepMemory], graphs: Views) -> Markup:
    state = sum(math.prod(entry.shape) * element_size(entry.dtype) for entry in program.state if entry.tied_to is None)
    methods = []
    for name, found in memory.items():
        if not found.moments:
            continue
        peak = found.moments[found.peak]
        example = [f"{symbol.label or symbol.name} = {symbol.hint}" for symbol in program.methods[name].symbols]
        operation = graphs[name][peak.half].operations[peak.operation]
        methods.append(
            {
                "name": name,
                "saved": found.saved_bytes,
                "peak": peak.total,
                "peak_half": peak.half,
                "peak_at": " in ".join(filter(None, (operation.op, operation.module))),
                "complete": found.complete,
                "example": ", ".join(dict.fromkeys(example)),  # sizes of one name may be several symbols
                "lines": _by_line(found),
                "tensors": found.saved,
                "kept": found.kept[:_KEPT],
                "more": max(0, len(found.kept) - _KEPT),
            }
        )
    return fragment("inspect/memory", methods=methods, state=state)


def _by_line(memory: StepMemory) -> list[dict[str, Any]]:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for tensor in memory.saved:
        sizes[tensor.line or "unknown"] += tensor.size
        counts[tensor.line or "unknown"] += 1
    whole = memory.saved_bytes or 1
    return [
        {"name": line, "count": counts[line], "bytes": size, "share": 100 * size / whole} for line, size in sizes.most_common()
    ]


def _memory_data(memory: StepMemory) -> dict[str, Any]:
    """Live bytes at each moment, and saved bytes by module and tensor."""
    return {
        "forward": sum(moment.half == "forward" for moment in memory.moments),
        "saved": [moment.saved for moment in memory.moments],
        "gradients": [moment.gradients for moment in memory.moments],
        "others": [moment.others for moment in memory.moments],
        "peak": memory.peak,
        "tensors": [[tensor.module, tensor.name, tensor.size] for tensor in memory.saved if tensor.size],
    }


def _effects(bundle: Bundle, memory: Mapping[str, StepMemory]) -> Markup:
    methods = [{"name": name, "effects": effects(bundle, bundle.program.methods[name], found)} for name, found in memory.items()]
    return fragment("inspect/effects", methods=methods)


def _targets(bundle: Bundle) -> Markup:
    here = readiness(bundle)
    targets = []
    for name, found in bundle.manifests.items():
        target = found.target
        toolchain = [(key, value) for key, value in target.toolchain.items() if key != "fixes"]
        toolchain += [(package, releases) for package, releases in target.packages.items()]
        targets.append(
            {
                "name": name,
                "runs": here[name].runs,
                "reason": here[name].reason,
                "platform": platform_text(found.platform),
                "instruction_set": target.instruction_set,
                "needs": requirements_of(target, bundle.program),
                "code": sum({blob.digest: blob.size for blob, _ in code_blobs(target)}.values()),
                "fixes": target.toolchain.get("fixes", "").split(),
                "toolchain": toolchain,
            }
        )
    return fragment("inspect/targets", targets=targets)


def _provenance(bundle: Bundle, attachments: Sequence[Any]) -> Markup:
    return fragment("inspect/provenance", blobs=list(blob_rows(bundle)), attachments=attachments)

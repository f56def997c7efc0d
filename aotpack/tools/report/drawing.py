"""Draws one graph of a bundle as text, as Graphviz source, or as SVG, by the modules of the original."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from aotpack_loader.errors import AotpackError

from .operations import GraphView, Operation
from .text import size_text, visible

_CLUSTER = 'style="rounded,filled"; color="#9db0f0"; fillcolor="#3f5bd90c"; fontsize=12'


@dataclass
class ModuleTree:
    """A module with its operations and submodules in order of their first operation."""

    path: str
    label: str
    items: list[Operation | ModuleTree] = field(default_factory=list)


def module_tree(view: GraphView) -> ModuleTree:
    """Return the operations of a graph by module."""
    root = ModuleTree("", view.key)
    known = {"": root}

    def found(path: str) -> ModuleTree:
        if path not in known:
            above, _, label = path.rpartition(".")
            known[path] = ModuleTree(path, label)
            found(above).items.append(known[path])
        return known[path]

    for operation in view.operations:
        found(operation.module).items.append(operation)
    return root


def as_text(view: GraphView) -> Iterator[str]:
    """Yield the lines of a graph as text: a line an operation, indented by module."""
    labels = {item.name: visible(item.label) for item in view.inputs}
    for item in view.inputs:
        if item.kind not in ("parameter", "buffer"):
            yield f"{item.kind} {labels[item.name]}: {visible(item.type)}"

    def lines(tree: ModuleTree, indent: str) -> Iterator[str]:
        for item in tree.items:
            if isinstance(item, ModuleTree):
                yield f"{indent}{visible(item.label)}:"
                yield from lines(item, indent + "  ")
            else:
                given = ", ".join(labels.get(name) or visible(name) for name in item.inputs)
                line = f"  # {visible(item.line)}" if item.line else ""
                yield f"{indent}{visible(item.name)} = {visible(_short(item.op))}({given}) -> {visible(item.type)}{line}"

    yield from lines(module_tree(view), "")
    ends: dict[str, None] = {}
    for output in view.outputs:
        name = visible(output.label) if output.kind == "result" else f"{output.kind} {visible(output.label)}".rstrip()
        ends[f"{name} = {labels.get(output.source) or visible(output.source)}"] = None
    yield from ends  # several results of one operation are one line


def as_dot(view: GraphView) -> str:
    """Return a graph as source of Graphviz: a cluster for each module."""
    numbers = {operation.name: f"n{i}" for i, operation in enumerate(view.operations)}
    direction = "BT" if view.key.endswith(".backward") else "TB"
    lines = [
        f"digraph {_quoted(view.key)} {{",
        f'  rankdir={direction}; compound=true; fontname="Helvetica"; nodesep=0.25; ranksep=0.3;',
        '  node [shape=box, style="rounded,filled", fillcolor="#ffffff", color="#c6ced8", fontname="Helvetica", fontsize=11];',
        '  edge [color="#8a95a3", arrowsize=0.6];',
    ]
    used = {name for operation in view.operations for name in operation.inputs}
    for i, item in enumerate(view.inputs):
        if item.name in used and item.kind not in ("parameter", "buffer"):
            numbers[item.name] = f"i{i}"
            colour = "#fdebdc" if item.kind == "saved" else "#e2f4ea"
            lines.append(f"  i{i} [label={_label(f'{item.kind} {item.label}', item.type)}, fillcolor={_quoted(colour)}];")
    lines += _clusters(module_tree(view), numbers, "  ")
    lines += [
        f"  {numbers[name]} -> {numbers[operation.name]};"
        for operation in view.operations
        for name in operation.inputs
        if name in numbers
    ]
    for i, output in enumerate(view.outputs):
        if output.source in numbers and output.kind == "result":
            lines += [f'  o{i} [label={_label(output.label)}, fillcolor="#e2f4ea"];', f"  {numbers[output.source]} -> o{i};"]
    return "\n".join([*lines, "}"]) + "\n"


def as_svg(view: GraphView) -> str:
    """Return a graph as SVG, which Graphviz lays out.

    Raises:
        AotpackError: the program ``dot`` is missing, or cannot lay the graph out in two minutes.
    """
    program = shutil.which("dot")
    if program is None:
        raise AotpackError(
            "SVG needs the program `dot` of Graphviz, which is not installed.",
            hint="Install it (Debian: apt-get install graphviz), or write a page: `aotpack inspect BUNDLE --html out.html`.",
        )
    try:
        done = subprocess.run([program, "-Tsvg"], input=as_dot(view), capture_output=True, text=True, timeout=120, check=True)
    except (subprocess.SubprocessError, OSError) as error:
        raise AotpackError(
            f"Graphviz cannot lay out {view.key}: {error}.",
            hint="Large graphs open in a page: `aotpack inspect BUNDLE --html out.html`.",
        ) from error
    return done.stdout


def _clusters(tree: ModuleTree, numbers: dict[str, str], indent: str, path: Sequence[int] = ()) -> list[str]:
    lines = []
    for i, item in enumerate(tree.items):
        if isinstance(item, ModuleTree):
            inner = (*path, i)
            lines += [
                f"{indent}subgraph cluster_{'_'.join(map(str, inner))} {{",
                f"{indent}  label={_quoted(item.label)}; {_CLUSTER};",
                *_clusters(item, numbers, indent + "  ", inner),
                f"{indent}}}",
            ]
        else:
            label = _label(_short(item.op), item.type)
            lines.append(f"{indent}{numbers[item.name]} [label={label}, tooltip={_quoted(_tooltip(item))}];")
    return lines


def _tooltip(operation: Operation) -> str:
    size = "" if operation.size is None else size_text(operation.size)
    return "  ".join(filter(None, (operation.name, operation.module, operation.line, size)))


def _short(op: str) -> str:
    return op.removeprefix("aten.").removesuffix(".default")


def _label(*lines: str) -> str:
    return _quoted("\n".join(map(visible, filter(None, lines))), lines=True)


def _quoted(text: str, *, lines: bool = False) -> str:
    """A string of Graphviz's language. ``lines``: line breaks are kept; all else that is not visible is escaped."""
    shown = text if lines else visible(text)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

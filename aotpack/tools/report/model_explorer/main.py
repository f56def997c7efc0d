"""The adapter: the graphs of a bundle as Model Explorer's, with the hierarchy of its modules.

It reads the bundle as ``aotpack inspect`` does: nothing of the bundle runs or is imported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from model_explorer import Adapter, AdapterMetadata, ModelExplorerGraphs
from model_explorer.graph_builder import Graph, GraphCollection, GraphNode, IncomingEdge, KeyValue, MetadataItem

from aotpack_loader.archive.bundle import Bundle

from ..operations import GraphView, Input, Operation, views
from ..text import size_text, visible


class BundleAdapter(Adapter):  # type: ignore[misc]  # the package has no types
    """Shows the graphs of a bundle: one collection a method, with its forward and its backward."""

    metadata: ClassVar[AdapterMetadata] = AdapterMetadata(
        id="aotpack",
        name="aotpack bundle",
        description="Forward and backward graphs of a bundle, by module of the original.",
        fileExts=["aotpack"],
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> ModelExplorerGraphs:
        """Return the graphs of the bundle at ``model_path``. There are no settings."""
        with Bundle.open(model_path) as bundle:
            found = [
                GraphCollection(visible(name), [_graph(view) for view in views(bundle, name).values()], "name_desc")
                for name in sorted(bundle.program.methods, key=lambda name: name != "train")  # the first one opens
            ]
        return {"graphCollections": found}


def _graph(view: GraphView) -> Graph:
    used = {name for operation in view.operations for name in operation.inputs}
    nodes = [_input(item) for item in view.inputs if item.name in used]
    nodes += [_operation(operation) for operation in view.operations]
    nodes += _results(view)
    return Graph(visible(view.key), nodes, groupNodeAttributes=_modules(view))


def _namespace(module: str) -> str:
    """The path of a module as Model Explorer writes it: ``features/0``."""
    return "/".join(visible(part).replace("/", "_") for part in module.split(".")) if module else ""


def _input(item: Input) -> GraphNode:
    attributes = {"kind": item.kind, "type": item.type, "saved by": item.source}
    label = f"{item.kind} {item.label}" if item.label else item.kind
    return GraphNode(
        visible(item.name), visible(label), "inputs" if item.kind in ("parameter", "buffer") else "", [], _attributes(attributes)
    )


def _operation(operation: Operation) -> GraphNode:
    size = "" if operation.size is None else size_text(operation.size)
    attributes = {"operator": operation.op, "module": operation.module, "line": operation.line, "memory": size}
    return GraphNode(
        visible(operation.name),
        visible(operation.op.removeprefix("aten.").removesuffix(".default")),
        _namespace(operation.module),
        attrs=_attributes(attributes),
        incomingEdges=[IncomingEdge(visible(name), "0", str(i)) for i, name in enumerate(operation.inputs)],
        outputsMetadata=[MetadataItem("0", [KeyValue("type", visible(operation.type))])],
    )


def _results(view: GraphView) -> Iterator[GraphNode]:
    """What the graph gives: results, gradients, and values for the backward."""
    for number, output in enumerate(view.outputs):
        label = visible(f"{output.kind} {output.label}".rstrip() if output.kind != "result" else output.label)
        edges = [IncomingEdge(visible(output.source))] if output.source else []
        yield GraphNode(f"output {number}", label, "outputs", incomingEdges=edges)


def _modules(view: GraphView) -> dict[str, dict[str, str]]:
    """What the side panel shows for a module: the bytes that it and its submodules save for the backward."""
    saved = {output.source for output in view.outputs if output.kind == "saved"}
    sizes: Counter[str] = Counter()
    for operation in view.operations:
        if operation.name in saved and operation.size:
            parts = operation.module.split(".") if operation.module else []
            for depth in range(len(parts) + 1):
                sizes[_namespace(".".join(parts[:depth]))] += operation.size
    return {module: {"saved for the backward": size_text(size)} for module, size in sizes.items()}


def _attributes(values: dict[str, str]) -> list[KeyValue]:
    return [KeyValue(key, visible(value)) for key, value in values.items() if value]

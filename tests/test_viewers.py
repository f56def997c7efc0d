"""Graphs of a bundle in the forms of other viewers: ONNX for Netron, and the adapter for Google's Model Explorer."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.hostile import HIDDEN, hostile_bundle

from aotpack.tools.cli import main
from aotpack.tools.report.onnx_file import as_onnx
from aotpack.tools.report.operations import views
from aotpack_loader.archive.bundle import Bundle


def test_onnx_has_the_operations_with_modules_and_lines(portable_digits_bundle: Path) -> None:
    onnx = pytest.importorskip("onnx")
    done = CliRunner().invoke(main, ["inspect", str(portable_digits_bundle), "--graph", "train.forward", "--format", "onnx"])
    assert done.exit_code == 0
    graph = onnx.load_from_string(done.stdout_bytes).graph
    with Bundle.open(portable_digits_bundle) as bundle:
        view = views(bundle, "train")["forward"]
    assert [node.name.rpartition("/")[2] for node in graph.node] == [operation.name for operation in view.operations]
    first = next(node for node in graph.node if node.op_type == "convolution")
    assert list(first.input)[:2] == ["images", "features.0.weight"]
    facts = {entry.key: entry.value for entry in first.metadata_props}
    assert facts["module"] == "features.0"
    assert facts["line"].startswith("model.py:")
    (images,) = [value for value in graph.input if value.name == "images"]
    assert [size.dim_param or size.dim_value for size in images.type.tensor_type.shape.dim] == ["batch", 1, 8, 8]
    made = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    assert {name for node in graph.node for name in node.input} <= made
    assert {value.name for value in graph.output} <= made


def test_onnx_of_every_graph_of_the_vectors() -> None:
    """Whatever the graph holds (subclasses, sizes, several results), the file names each value once."""
    onnx = pytest.importorskip("onnx")
    from support.hostile import VECTORS

    for folder in sorted(VECTORS.iterdir()):
        with Bundle.open(folder / "bundle.aotpack") as bundle:
            for name in bundle.program.methods:
                for view in views(bundle, name).values():
                    graph = onnx.load_from_string(as_onnx(view)).graph
                    outputs = [name for node in graph.node for name in node.output] + [value.name for value in graph.input]
                    assert len(outputs) == len(set(outputs)), (folder.name, view.key)


def test_names_in_onnx_are_visible(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    with Bundle.open(hostile_bundle(tmp_path)) as bundle:
        data = as_onnx(views(bundle, "train")["forward"])
    assert b"img src" in data
    assert not [c for c in HIDDEN if ord(c) > 0x9F and c.encode() in data]


@pytest.fixture
def adapter() -> Any:
    pytest.importorskip("model_explorer", reason="pip install aotpack[model-explorer], a wheel of 128 MB")
    return importlib.import_module("aotpack.tools.report.model_explorer.main").BundleAdapter()


def test_model_explorer_shows_the_modules(adapter: Any, portable_digits_bundle: Path) -> None:
    train, _ = adapter.convert(str(portable_digits_bundle), {})["graphCollections"]
    forward, backward = train.graphs
    assert (train.label, forward.id, backward.id) == ("train", "train.forward", "train.backward")
    for graph in train.graphs:
        names = [node.id for node in graph.nodes]
        assert len(names) == len(set(names))
        assert {edge.sourceNodeId for node in graph.nodes for edge in node.incomingEdges} <= set(names)
        assert {"features/0", "features/4", "head"} <= {node.namespace for node in graph.nodes}
    assert "features/2" in forward.groupNodeAttributes


def test_names_in_model_explorer_are_visible(adapter: Any, tmp_path: Path) -> None:
    found = adapter.convert(str(hostile_bundle(tmp_path)), {})
    assert "img src" in str(found)
    assert not HIDDEN & set(str(found))

"""Writes a bundle with a graph of any size, for tests and figures of ``aotpack inspect``."""

from __future__ import annotations

from pathlib import Path

from aotpack_loader.archive import compression
from aotpack_loader.format import media_types

from .paths import ROOT
from .spec.documents import Documents, dump
from .spec.vectors import tar

PARTS = ("norm", "attention.query", "attention.key", "attention.value", "attention.out", "mlp.up", "mlp.down")


def write_large_bundle(path: Path, operations: int) -> None:
    """Write a bundle whose inference graph is a chain of ``operations`` in layers of 250, with a skip connection each."""
    documents = Documents(ROOT / "spec/vectors/v1/valid/scale/bundle.aotpack")
    documents.program["methods"].pop("train")  # the page shows the first method
    documents.open_method(documents.program["methods"]["infer"])
    forward = documents.forward
    *_, last = forward["nodes"]
    nodes, modules, names = list(forward["nodes"]), [0] * len(forward["nodes"]), [""]
    skip = previous = last["name"]
    for number in range(operations - len(nodes)):
        layer, step = divmod(number, 250)
        module = f"layers.{layer}.{PARTS[step * len(PARTS) // 250]}"
        if names[-1] != module:
            names.append(module)
        ends = step == 249
        args = [{"type": "value", "name": previous}] + ([{"type": "value", "name": skip}] if ends else [])
        node = {**last, "name": f"node_{number}", "op": "aten.add.Tensor" if ends else "aten.sin.default", "args": args}
        nodes.append(node)
        modules.append(len(names) - 1)
        previous = node["name"]
        skip = previous if ends else skip
    forward["nodes"] = nodes
    forward["outputs"] = [{"type": "value", "name": previous}] * len(forward["outputs"])
    documents.set_forward()
    graph = {"modules": modules, "lines": [number % 40 for number in range(len(nodes))]}
    raw = dump({"modules": names, "lines": [f"model.py:{number}" for number in range(40)], "graphs": {"infer.forward": graph}})
    origins = documents.add_blob(media_types.ORIGINS, compression.compress(raw), raw)
    documents.program["origins"] = origins
    documents.manifest["layers"].append(origins)
    path.write_bytes(tar(list(documents.files().items())))

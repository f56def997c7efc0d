"""Small bundles for tests: valid ones from the writer, and hostile ones from documents edited as plain JSON.

It does not depend on models. The only method is ``y = x * scale``, written by hand from schema
types.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from aotpack.writer.bundle import BlobStore, TargetEntry, write_bundle
from aotpack.writer.weights import write_weights
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.format import media_types
from aotpack_loader.format.codec import encode
from aotpack_loader.format.schema import (
    Descriptor,
    DictNode,
    FreshResult,
    Graph,
    InputPrimal,
    LeafNode,
    Method,
    Mode,
    Node,
    ParameterPrimal,
    Producer,
    Program,
    Requirements,
    StateEntry,
    Target,
    TensorLeaf,
    TensorValue,
    TupleNode,
    ValueRef,
    Version,
)

Edit = Callable[[dict[str, Any]], object]
PORTABLE = Target("portable", "portable", "cpu")


def tiny_graph() -> Graph:
    """``y = x * scale`` on four floats."""
    value = TensorValue("float32", [4], [1])
    node = Node("y", "aten.mul.Tensor", [ValueRef("x"), ValueRef("scale")], value)
    return Graph(["x", "scale"], [value, value], [node], [ValueRef("y")])


def tiny_program(graph: Descriptor, weights: list[Descriptor], state: Sequence[StateEntry] = (), name: str = "tiny") -> Program:
    """A program with one inference method and one parameter, ``scale``. ``state`` adds entries to it."""
    method = Method(
        serves=[Mode(training=False, grad=False)],
        inputs=TupleNode([TupleNode([LeafNode()]), DictNode([], [])]),
        leaves=[TensorLeaf("args[0]", "float32", [4])],
        outputs=LeafNode(),
        results=[FreshResult(0)],
        primals=[InputPrimal(0), ParameterPrimal("scale")],
        forward=graph,
        num_outputs=1,
    )
    scale = StateEntry("scale", "parameter", "float32", [4], [1], "scale", requires_grad=True)
    return Program(
        format=Version(1, 0),
        name=name,
        producer=Producer("0.1.0", "2.13.0"),
        requirements=Requirements(">=2.9"),
        state=[scale, *state],
        methods={"infer": method},
        weights=weights,
        training=False,
    )


def write_tiny(
    out: str | Path,
    *,
    layout: Literal["file", "directory"] = "file",
    tensors: Sequence[tuple[str, torch.Tensor]] = (),
    state: Sequence[StateEntry] = (),
    name: str = "tiny",
) -> str:
    """Write a small bundle and return its digest. ``tensors`` are stored in addition to ``scale``."""
    with BlobStore(out) as store:
        weights = write_weights([("scale", torch.arange(4.0)), *tensors], store)
        graph = store.add_compressed(encode(tiny_graph()), media_types.GRAPH)
        program = tiny_program(graph, weights, state, name)
        return write_bundle(out, store, program, [TargetEntry(PORTABLE, None, [graph, *weights])], layout=layout)


def verified_digest(path: str | Path) -> str:
    """The digest of a bundle, all of whose blobs have theirs."""
    with Bundle.open(path) as bundle:
        bundle.verify()
        return bundle.digest


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def members(path: Path) -> dict[str, bytes]:
    """The files of a bundle by their names in the archive."""
    with tarfile.open(path) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive]
        return {name: file.read() for name, file in files if file is not None}


def pack(files: Mapping[str, bytes], *, format: int = tarfile.USTAR_FORMAT) -> bytes:
    """Make a tar of ``files`` with the standard library, independently of our writer."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


class Documents:
    """The documents of a bundle as plain JSON that can be edited. :meth:`files` updates all digests and sizes."""

    def __init__(self, path: Path) -> None:
        files = members(path)
        self.blobs = {"sha256:" + name.rpartition("/")[2]: data for name, data in files.items() if "sha256/" in name}
        self.top = json.loads(files["index.json"])
        self.index = self._load(self.top["manifests"][0])
        self.manifest = self._load(self.index["manifests"][0])
        self.program = self._load(self.manifest["config"])
        self.target = self._load(self.manifest["layers"][0])

    def documents(self) -> dict[str, dict[str, Any]]:
        return {name: getattr(self, name) for name in ("program", "target", "manifest", "index", "top")}

    def replace_blob(self, media_type: str, change: Callable[[bytes], bytes]) -> None:
        """Change the blob of ``media_type`` and all its descriptors."""
        old = next(layer["digest"] for layer in self.manifest["layers"] if layer["mediaType"] == media_type)
        data = change(self.blobs.pop(old))
        self.blobs[digest_of(data)] = data
        for document in self.documents().values():
            _redirect(document, old, data)

    def files(self) -> dict[str, bytes]:
        """Return the archive's files, with digests computed from the bottom up."""
        self._store(self.program, self.manifest.get("config"))
        layers = self.manifest.get("layers")
        self._store(self.target, layers[0] if isinstance(layers, list) and layers else None)
        for document, above in ((self.manifest, self.index), (self.index, self.top)):
            listed = above.get("manifests")
            self._store(document, listed[0] if isinstance(listed, list) and listed else None)
        named = {"blobs/sha256/" + digest[7:]: data for digest, data in self.blobs.items()}
        return {**named, "index.json": _dump(self.top), "oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}

    def _load(self, descriptor: dict[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.blobs.pop(descriptor["digest"]))
        return document

    def _store(self, document: dict[str, Any], descriptor: object) -> None:
        data = _dump(document)
        self.blobs[digest_of(data)] = data
        if isinstance(descriptor, dict):
            descriptor.update(digest=digest_of(data), size=len(data))


def _dump(document: object) -> bytes:
    return json.dumps(document).encode()


def _redirect(node: object, old: str, data: bytes) -> None:
    if isinstance(node, dict):
        if node.get("digest") == old:
            node.update(digest=digest_of(data), size=len(data))
        for child in node.values():
            _redirect(child, old, data)
    elif isinstance(node, list):
        for child in node:
            _redirect(child, old, data)


def safetensors_blob(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file with any header. ``length`` overrides the recorded length of the header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def use(bundle: Bundle) -> None:
    """Read everything that a loader reads."""
    bundle.verify()
    for method in bundle.program.methods.values():
        bundle.graph(method.forward)
    weights = bundle.weights()
    for entry in bundle.program.state:
        weights.tensor(entry)


def open_and_use(path: Path) -> None:
    with Bundle.open(path) as bundle:
        use(bundle)

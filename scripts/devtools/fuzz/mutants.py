"""Bundles that a hostile author has changed, with all digests and sizes made right again.

A seed is read once. A mutant parses only the documents of its seed, changes some of them, and writes
and hashes anew only what has changed and what refers to it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import io
import json
import random
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

import zstandard

Json = Any
_ZSTD = b"\x28\xb5\x2f\xfd"
_BLOBS = "blobs/sha256/"
_NUMBERS = (-(2**63), -1, 0, 1, 2, 3, 7, 64, 2**31, 2**40, 2**62, 2**63 - 1, 2**70)
_TEXTS = (
    "",
    "x",
    "../..",
    "s0",
    "s0 // 0",
    "s0*s0*s0",
    "(" * 50,
    "a.b.c",
    "sha256:" + "0" * 64,
    "aten.add.Tensor",
    "\x00",
    "__class__",
)
_JUNK: tuple[Json, ...] = (None, True, False, 1.5, [], {}, [[]], [1] * 70, {"type": "leaf"}, {"type": "value", "name": "x"})


class Seed:
    """An honest bundle: its files, and the text of each document by digest and kind."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            files = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}  # type: ignore[union-attr]
        self.marker = files.pop("oci-layout")
        self.top = files.pop("index.json")
        self.blobs = {"sha256:" + name.rpartition("/")[2]: blob for name, blob in files.items()}
        self.indexes = self._taken(item["digest"] for item in json.loads(self.top)["manifests"])
        self.manifests = self._taken(item["digest"] for text in self.indexes.values() for item in json.loads(text)["manifests"])
        manifests = [json.loads(text) for text in self.manifests.values()]
        self.programs = self._taken(manifest["config"]["digest"] for manifest in manifests)
        self.targets = self._taken(manifest["layers"][0]["digest"] for manifest in manifests)
        texts = {digest: _decompressed(blob) for digest, blob in self.blobs.items() if blob[:4] == _ZSTD}
        self.graphs = {digest: text for digest, text in texts.items() if text[:1] == b"{" and b'"nodes"' in text}
        media = {layer["digest"]: layer["mediaType"] for manifest in manifests for layer in manifest["layers"]}
        self.weights = [digest for digest in self.blobs if "weights" in media.get(digest, "")]

    def _taken(self, digests: Any) -> dict[str, bytes]:
        return {digest: self.blobs.pop(digest) for digest in dict.fromkeys(digests)}


class Parts:
    """A seed taken apart: documents as JSON, all by the digests that they had."""

    def __init__(self, seed: Seed) -> None:
        self.seed = seed
        self.blobs = dict(seed.blobs)
        self.top = json.loads(seed.top)
        self.indexes = _parsed(seed.indexes)
        self.manifests = _parsed(seed.manifests)
        self.programs = _parsed(seed.programs)
        self.targets = _parsed(seed.targets)
        self.graphs = dict(seed.graphs)
        self.weights = list(seed.weights)
        self.changed: set[int] = set()
        """The documents that differ from the seed's, by identity."""
        self._changed_graphs: dict[str, Json] = {}

    def graph(self, digest: str) -> Json:
        """A graph, to be changed."""
        if digest not in self._changed_graphs:
            self._changed_graphs[digest] = json.loads(self.graphs[digest])
        return self._changed_graphs[digest]

    def packed(self) -> bytes:
        """The file, with all digests and sizes of what has changed."""
        for old, graph in self._changed_graphs.items():
            self.replace_graph(old, _dump(graph))
        self._store(self.targets, self.seed.targets, [self.manifests])
        self._store(self.programs, self.seed.programs, [self.manifests])
        self._store(self.manifests, self.seed.manifests, [self.indexes])
        self._store(self.indexes, self.seed.indexes, [{"": self.top}])
        files = {_BLOBS + digest[7:]: blob for digest, blob in self.blobs.items()}
        return _tar({**files, "index.json": _dump(self.top), "oci-layout": self.seed.marker})

    def replace_blob(self, old: str, blob: bytes) -> None:
        """Change a blob and all that refers to it."""
        self._replace(old, blob, None, [self.programs, self.manifests, self.targets])

    def replace_graph(self, old: str, raw: bytes) -> None:
        """Change the text of a graph and all that refers to it."""
        self._replace(old, _compressed(raw), raw, [self.programs, self.manifests, self.targets])

    def _store(self, documents: Mapping[str, Json], texts: Mapping[str, bytes], above: Sequence[Json]) -> None:
        for old, document in documents.items():
            if id(document) in self.changed:
                self._replace(old, _dump(document), None, above)
            else:
                self.blobs[old] = texts[old]

    def _replace(self, old: str, blob: bytes, raw: bytes | None, above: Sequence[Json]) -> None:
        self.blobs.pop(old, None)
        self.blobs[_digest(blob)] = blob
        for documents in above:
            for document in documents.values():
                if _redirect(document, old, blob, raw):
                    self.changed.add(id(document))


def _parsed(texts: Mapping[str, bytes]) -> dict[str, Json]:
    return {digest: json.loads(text) for digest, text in texts.items()}


def _decompressed(blob: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(blob, max_output_size=1 << 24)


def _compressed(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_content_size=True).compress(raw)


def _dump(document: Json) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _redirect(node: Json, old: str, blob: bytes, raw: bytes | None) -> bool:
    """Correct all descriptors of a changed blob in a document. Returns whether there was one."""
    found = False
    if isinstance(node, dict):
        if node.get("digest") == old:
            found = True
            node.update(digest=_digest(blob), size=len(blob))
            notes = node.get("annotations")
            if raw is not None and isinstance(notes, dict):
                for key in list(notes):
                    if key.endswith("size"):
                        notes[key] = str(len(raw))
                    elif key.endswith("digest"):
                        notes[key] = _digest(raw)
        children: Any = node.values()
    else:
        children = node if isinstance(node, list) else ()
    for child in children:
        if isinstance(child, (dict, list)) and _redirect(child, old, blob, raw):
            found = True
    return found


@functools.lru_cache(4096)
def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)


def _tar(files: Mapping[str, bytes]) -> bytes:
    pieces = [piece for name, data in files.items() for piece in (_header(name, len(data)), data, bytes(-len(data) % 512))]
    return b"".join((*pieces, bytes(1024)))


# ---------------------------------------------------------------- mutations


def mutant(seed: Seed, generator: random.Random, operators: tuple[str, ...]) -> bytes:
    """A bundle with one to four changes."""
    parts = Parts(seed)
    for _ in range(generator.choice((1, 1, 1, 2, 4))):
        kind = generator.random()
        if kind < 0.5 and parts.graphs:
            _change_graph(parts.graph(generator.choice(list(parts.graphs))), generator, operators)
        elif kind < 0.9:
            _change_one(parts, list(parts.programs.values()), generator)
        elif kind < 0.94:
            _change_one(parts, list(parts.targets.values()), generator)
        elif kind < 0.97 and parts.weights:
            _change_weights(parts, generator)
        else:
            _change_one(parts, [*parts.manifests.values(), *parts.indexes.values(), parts.top], generator)
    with contextlib.suppress(KeyError, TypeError, AttributeError, IndexError):
        return parts.packed()  # a document above may lack what is redirected
    return seed.data[: generator.randrange(len(seed.data))]


def _change_one(parts: Parts, documents: Sequence[Json], generator: random.Random) -> None:
    document = generator.choice(documents)
    parts.changed.add(id(document))
    _change(document, generator)


def _slots(node: Json) -> list[tuple[Any, Any]]:
    """Every value in a document, as what holds it and its key there."""
    found: list[tuple[Any, Any]] = []
    pending = [node]
    while pending:
        current = pending.pop()
        keys = list(current.keys()) if isinstance(current, dict) else range(len(current))
        found += [(current, key) for key in keys]
        pending += [current[key] for key in keys if isinstance(current[key], (dict, list))]
    return found


def _change(node: Json, generator: random.Random) -> None:
    slots = _slots(node)
    if not slots:
        return
    holder, key = generator.choice(slots)
    value, kind = holder[key], generator.randrange(12)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(generator.randint(0, len(holder)), copy.deepcopy(value))
    elif kind == 2:
        other, other_key = generator.choice(slots)
        holder[key] = copy.deepcopy(other[other_key])
    elif kind == 3:
        holder[key] = generator.choice(_JUNK)
    elif kind <= 6:  # what stands under the same key elsewhere fits best, and so gets furthest
        same = [h[k] for h, k in slots if k == key and type(h[k]) is type(value)]
        holder[key] = copy.deepcopy(generator.choice(same))
    elif isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = generator.choice((*_NUMBERS, value + 1, value - 1, value * 2))
    elif isinstance(value, str):
        texts = [h[k] for h, k in slots if isinstance(h[k], str)]
        holder[key] = generator.choice((*_TEXTS, generator.choice(texts), value[:-1], value * 2))
    elif isinstance(value, list) and value:
        generator.shuffle(value)


def _change_graph(graph: Json, generator: random.Random, operators: tuple[str, ...]) -> None:
    nodes = graph.get("nodes")
    kind = generator.randrange(6)
    if not isinstance(nodes, list) or not nodes or kind == 0:
        _change(graph, generator)
        return
    node = generator.choice(nodes)
    if not isinstance(node, dict) or not isinstance(node.get("args"), list):
        return
    if kind == 1:
        node["op"] = generator.choice(operators)
    elif kind == 2:
        node["op"] = generator.choice(_operators_like(_pattern(node["args"]), operators) or operators)
    elif kind == 3:
        others = [other["name"] for other in nodes if isinstance(other, dict) and "name" in other]
        names = [*others, *(name for name in graph.get("inputs", ()) if isinstance(name, str))]
        reference = {"type": "value", "name": generator.choice(names)} if names else None
        if node["args"]:
            node["args"][generator.randrange(len(node["args"]))] = reference
    else:
        _change({"args": node["args"], "kwargs": node.setdefault("kwargs", {})}, generator)


def _pattern(args: Sequence[Json]) -> str:
    """Which arguments are values of the graph: ``v`` or ``-`` for each."""
    return "".join("v" if isinstance(arg, dict) and arg.get("type") == "value" else "-" for arg in args)


@functools.lru_cache(1024)
def _operators_like(pattern: str, operators: tuple[str, ...]) -> list[str]:
    """Operators that take tensors where the pattern has values, so that most of them run."""
    return [
        name
        for name, required, tensors in signatures(operators)
        if required <= len(pattern) <= len(tensors) and tensors.startswith(pattern)
    ]


@functools.lru_cache(1)
def signatures(operators: tuple[str, ...]) -> list[tuple[str, int, str]]:
    """Name, number of required positional arguments, and pattern of each operator that this torch has."""
    import torch

    found = []
    for name in operators:
        try:
            operator: Any = functools.reduce(getattr, name.split("."), torch.ops)
        except AttributeError:
            continue  # a later release removed it: aten.cholesky
        given = [argument for argument in operator._schema.arguments if not argument.kwarg_only]
        tensors = "".join("v" if "Tensor" in str(argument.type) else "-" for argument in given)
        found.append((name, sum(not argument.has_default_value() for argument in given), tensors))
    return found


def _change_weights(parts: Parts, generator: random.Random) -> None:
    old = generator.choice(parts.weights)
    blob = parts.blobs[old]
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + length])
    body = bytearray(blob[8 + length :])
    if generator.random() < 0.5 and body:
        for _ in range(4):
            body[generator.randrange(len(body))] = generator.choice((0, 255, 127, 128))
        text = blob[8 : 8 + length]
    else:
        _change(header, generator)
        text = _dump(header)
        text += b" " * (-len(text) % 8)
    parts.replace_blob(old, len(text).to_bytes(8, "little") + text + bytes(body))
    parts.weights.remove(old)

"""Fuzzes the loader with real bundles that a hostile author has changed and signed anew.

A mutant is a valid vector or another bundle with some changes of its documents, graphs or weights. All digests
and sizes are right again. It goes through ``load``, one training step and one inference step, in
a forked worker with limits. What counts as a finding: the end of the process, more processor time
or memory than the limits, and an exception that is none of ours.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import random
import resource
import signal
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Json = Any
SECONDS = 1.0
"""Of processor time for one mutant."""
GROWTH = 256 << 10
"""KiB that the process's memory may grow by, for one mutant."""
_ADDRESSES = 6 << 30
_BATCH = 40
_ZSTD = b"\x28\xb5\x2f\xfd"
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


class Parts:
    """A bundle taken apart: documents as JSON, all by their digests, from the leaves up."""

    def __init__(self, data: bytes) -> None:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            files = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}  # type: ignore[union-attr]
        self.marker = files.pop("oci-layout")
        self.top = json.loads(files.pop("index.json"))
        self.blobs = {"sha256:" + name.rpartition("/")[2]: blob for name, blob in files.items()}
        indexes = [item["digest"] for item in self.top["manifests"]]
        self.indexes = {digest: json.loads(self.blobs.pop(digest)) for digest in indexes}
        manifests = [item["digest"] for index in self.indexes.values() for item in index["manifests"]]
        self.manifests = {digest: json.loads(self.blobs.pop(digest)) for digest in manifests}
        programs = {manifest["config"]["digest"] for manifest in self.manifests.values()}
        self.programs = {digest: json.loads(self.blobs.pop(digest)) for digest in programs}
        targets = {manifest["layers"][0]["digest"] for manifest in self.manifests.values()}
        self.targets = {digest: json.loads(self.blobs.pop(digest)) for digest in targets}
        self.graphs = {digest: _graph(blob) for digest, blob in self.blobs.items() if blob[:4] == _ZSTD}
        self.graphs = {digest: graph for digest, graph in self.graphs.items() if graph is not None}
        media = {layer["digest"]: layer["mediaType"] for m in self.manifests.values() for layer in m["layers"]}
        self.weights = [digest for digest in self.blobs if "weights" in media.get(digest, "")]

    def packed(self) -> bytes:
        """The file, with all digests and sizes of what has changed."""
        self._store(self.graphs, _compressed, [self.programs, self.manifests, self.targets])
        self._store(self.targets, _dump, [self.manifests])
        self._store(self.programs, _dump, [self.manifests])
        self._store(self.manifests, _dump, [self.indexes])
        self._store(self.indexes, _dump, [{"": self.top}])
        files = {"blobs/sha256/" + digest[7:]: blob for digest, blob in self.blobs.items()}
        return _tar({**files, "index.json": _dump(self.top), "oci-layout": self.marker})

    def replace_blob(self, old: str, blob: bytes) -> None:
        """Change a blob and all that refers to it."""
        del self.blobs[old]
        self.blobs[_digest(blob)] = blob
        for documents in (self.programs, self.manifests, self.targets):
            _redirect(documents, old, blob, None)

    def _store(self, documents: dict[str, Json], write: Any, above: Sequence[Json]) -> None:
        for old, document in documents.items():
            blob = write(document)
            if old in self.blobs:
                del self.blobs[old]
            self.blobs[_digest(blob)] = blob
            for documents_above in above:
                _redirect(documents_above, old, blob, _dump(document) if write is _compressed else None)


def _graph(blob: bytes) -> Json:
    import zstandard

    raw = zstandard.ZstdDecompressor().decompress(blob, max_output_size=1 << 24)
    return json.loads(raw) if raw[:1] == b"{" and b'"nodes"' in raw else None


def _compressed(document: Json) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=1, write_content_size=True).compress(_dump(document))


def _dump(document: Json) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _redirect(node: Json, old: str, blob: bytes, raw: bytes | None) -> None:
    if isinstance(node, dict):
        if node.get("digest") == old:
            node.update(digest=_digest(blob), size=len(blob))
            notes = node.get("annotations")
            if raw is not None and isinstance(notes, dict):
                for key in list(notes):
                    if key.endswith("size"):
                        notes[key] = str(len(raw))
                    elif key.endswith("digest"):
                        notes[key] = _digest(raw)
        for child in node.values():
            _redirect(child, old, blob, raw)
    elif isinstance(node, list):
        for child in node:
            _redirect(child, old, blob, raw)


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


# ---------------------------------------------------------------- mutations


def mutant(data: bytes, generator: random.Random, operators: Sequence[str]) -> bytes:
    """A bundle with one to four changes."""
    parts = Parts(data)
    for _ in range(generator.choice((1, 1, 1, 2, 4))):
        kind = generator.random()
        if kind < 0.5 and parts.graphs:
            _change_graph(generator.choice(list(parts.graphs.values())), generator, operators)
        elif kind < 0.9:
            _change(generator.choice(list(parts.programs.values())), generator)
        elif kind < 0.94:
            _change(generator.choice(list(parts.targets.values())), generator)
        elif kind < 0.97 and parts.weights:
            _change_weights(parts, generator)
        else:
            _change(generator.choice([*parts.manifests.values(), *parts.indexes.values(), parts.top]), generator)
    with contextlib.suppress(KeyError, TypeError, AttributeError, IndexError):
        return parts.packed()  # a document above may lack what is redirected
    return data[: generator.randrange(len(data))]


def _places(node: Json) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    pending = [node]
    while pending:
        current = pending.pop()
        keys = list(current.keys()) if isinstance(current, dict) else range(len(current))
        found += [(current, key) for key in keys]
        pending += [current[key] for key in keys if isinstance(current[key], (dict, list))]
    return found


def _change(node: Json, generator: random.Random) -> None:
    places = _places(node)
    if not places:
        return
    holder, key = generator.choice(places)
    value, kind = holder[key], generator.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(generator.randint(0, len(holder)), copy.deepcopy(value))
    elif kind == 2:
        other, other_key = generator.choice(places)
        holder[key] = copy.deepcopy(other[other_key])
    elif kind == 3:
        holder[key] = generator.choice(_JUNK)
    elif isinstance(value, int):
        holder[key] = generator.choice((*_NUMBERS, value + 1, value - 1, value * 2))
    elif isinstance(value, str):
        same = [h[k] for h, k in places if isinstance(h[k], str)]
        holder[key] = generator.choice((*_TEXTS, generator.choice(same), value[:-1], value * 2))
    elif isinstance(value, list) and value:
        generator.shuffle(value)


def _change_graph(graph: Json, generator: random.Random, operators: Sequence[str]) -> None:
    nodes = graph.get("nodes")
    kind = generator.randrange(5)
    if not isinstance(nodes, list) or not nodes or kind == 0:
        _change(graph, generator)
        return
    node = generator.choice(nodes)
    if not isinstance(node, dict) or not isinstance(node.get("args"), list):
        return
    if kind == 1:
        node["op"] = generator.choice(operators)
    elif kind == 2:
        others = [other["name"] for other in nodes if isinstance(other, dict) and "name" in other]
        names = [*others, *(name for name in graph.get("inputs", ()) if isinstance(name, str))]
        reference = {"type": "value", "name": generator.choice(names)} if names else None
        if node["args"]:
            node["args"][generator.randrange(len(node["args"]))] = reference
    else:
        _change({"args": node["args"], "kwargs": node.setdefault("kwargs", {})}, generator)


def _change_weights(parts: Parts, generator: random.Random) -> None:
    old = generator.choice(parts.weights)
    if old not in parts.blobs:
        return
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


# ---------------------------------------------------------------- running


def arguments(method: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that fit a method, as far as its description makes sense."""
    import torch

    from aotpack_loader.devices.literals import literal
    from aotpack_loader.format import expressions, schema
    from aotpack_loader.runtime.tree import unflattener

    sizes = {symbol.name: min(max(symbol.minimum, symbol.hint or 4), 64) for symbol in method.symbols}
    leaves: list[Any] = []
    for leaf in method.leaves:
        if isinstance(leaf, schema.TensorLeaf):
            shape = [expressions.evaluate(size, sizes) if isinstance(size, str) else size for size in leaf.shape]
            count = 1
            for size in shape:
                count *= size
            if count > 1 << 16:
                raise ValueError("too large")
            tensor = torch.ones(shape, dtype=torch.float32).to(getattr(torch, leaf.dtype))
            leaves.append(tensor.requires_grad_(leaf.requires_grad))
        elif isinstance(leaf, schema.IntegerLeaf):
            leaves.append(sizes[leaf.size])
        else:
            leaves.append(literal(leaf.value))
    args, kwargs = unflattener(method.inputs)(iter(leaves))
    return args, kwargs


def use(path: str) -> str:
    """Load a bundle and run one step in each mode. Returns what ended it: ``ran``, or the name of our error.

    Raises:
        Exception: one that is not ours.
    """
    import torch

    import aotpack_loader
    from aotpack_loader.errors import AotpackError

    try:
        model = aotpack_loader.load(path, backend="portable")
    except AotpackError as error:
        return type(error).__name__
    outcome = "ran"
    for name, method in model.aotpack.program.methods.items():
        for mode in method.serves:
            try:
                args, kwargs = arguments(method)
            except Exception:  # nobody could call it
                continue
            model.train(mode.training)
            try:
                with torch.set_grad_enabled(mode.grad):
                    results = model(*args, **kwargs)
                tensors = [t for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
                heads = [t for t in tensors if t.requires_grad and t.grad_fn is not None]
                if heads:
                    torch.autograd.backward(heads, [torch.ones_like(head) for head in heads])
            except AotpackError as error:
                outcome = f"{name}: {type(error).__name__}"
    return outcome


class Finding(NamedTuple):
    """A mutant that did what it should not."""

    number: int
    seed: str
    what: str
    where: str


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))


def _work(seeds: Sequence[tuple[str, bytes]], numbers: range, operators: Sequence[str], send: int, folder: str) -> None:
    """Run mutants in a fork, and send what happens."""
    _limit()
    path = os.path.join(folder, "mutant.aotpack")
    for number in numbers:
        name, data = seeds[number % len(seeds)]
        changed = mutant(data, random.Random(number), operators)
        Path(path).write_bytes(changed)
        _send(send, ["at", number])
        signal.setitimer(signal.ITIMER_PROF, 4 * SECONDS)
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        try:
            _send(send, ["end", use(path)])
        except BaseException as error:  # what is not ours is a finding
            last = traceback.extract_tb(error.__traceback__)[-1]
            ours = [f for f in traceback.extract_tb(error.__traceback__) if "aotpack_loader" in f.filename][-1:]
            where = [f"{Path(f.filename).name}:{f.lineno}" for f in (*ours, last)]
            _send(send, ["found", number, name, f"{type(error).__name__}: {str(error)[:160]}", " ".join(where)])
        taken, grown = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if taken > SECONDS:
            _send(send, ["found", number, name, "hang", f"{taken:.1f} s"])
        if grown > GROWTH:
            _send(send, ["found", number, name, "allocation", f"{grown >> 10} MiB"])
        signal.setitimer(signal.ITIMER_PROF, 0)


def _send(handle: int, message: Sequence[object]) -> None:
    os.write(handle, json.dumps(message).encode() + b"\n")


def fuzz(seeds: Sequence[tuple[str, bytes]], numbers: range, *, seconds: float = 1e9, show: bool = True) -> dict[str, Any]:
    """Run mutants until they or the seconds are used up. Returns counts and findings."""
    import torch

    from aotpack_loader.devices import allowed

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    operators = sorted(allowed.OPERATORS)
    outcomes: dict[str, int] = {}
    findings: list[Finding] = []
    at, stop, ends = numbers.start, numbers.stop, time.monotonic() + seconds
    done = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        for name, data in seeds[:20]:  # imports and compiles what the forks then share
            Path(folder, name).write_bytes(data)
            use(os.path.join(folder, name))
        while at < stop and time.monotonic() < ends:
            batch = range(at, min(at + _BATCH, stop))
            receive, send = os.pipe()
            child = os.fork()
            if not child:
                os.close(receive)
                with contextlib.suppress(BaseException):
                    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
                    os.dup2(sys.stderr.fileno(), 2)
                    _work(seeds, batch, operators, send, folder)
                    os._exit(0)
                os._exit(9)
            os.close(send)
            last = at
            with os.fdopen(receive) as lines:  # the fork's end of the pipe closes with it
                for line in lines:
                    kind, *rest = json.loads(line)
                    if kind == "at":
                        last, done = rest[0], done + 1
                    elif kind == "end":
                        word = rest[0].rpartition(" ")[2]
                        outcomes[word] = outcomes.get(word, 0) + 1
                    else:
                        findings.append(_shown(Finding(*rest), show=show))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status:
                what = "hang" if status == -signal.SIGPROF else f"crash {status}"
                findings.append(_shown(Finding(last, seeds[last % len(seeds)][0], what, ""), show=show))
                at = last + 1
            else:
                at = batch.stop
    return {"mutants": done, "outcomes": outcomes, "findings": [finding._asdict() for finding in findings]}


def _shown(finding: Finding, *, show: bool) -> Finding:
    if show:
        print(*finding, flush=True)
    return finding


def vectors(root: Path, most: int = 1 << 17) -> list[tuple[str, bytes]]:
    """The valid vectors with portable targets that are small enough."""
    return list(_vectors(root, most))


def _vectors(root: Path, most: int) -> Iterator[tuple[str, bytes]]:
    for folder in sorted((root / "spec/vectors/v1/valid").iterdir()):
        data = (folder / "bundle.aotpack").read_bytes()
        if len(data) <= most and b'"portable"' in data:
            yield folder.name, data

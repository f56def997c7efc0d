"""Writes the conformance vectors under spec/vectors/v1: small portable bundles, and what they must do.

    python scripts/spec_vectors.py            writes the cases that are not there yet
    python scripts/spec_vectors.py --list

Add-only: a vector that exists is never written again, so that every bundle of every release stays readable. A change
of behaviour is a new case with a new name. Each valid case is a model of plain torch code below, built with a
self-test; what the original makes of the recorded inputs goes to expect.safetensors. Each invalid case is one edit of
the valid case ``scale`` with all digests made right again, so that exactly one rule is broken.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import hashlib
import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from spec_replay import BUNDLE, EXPECT, TENSORS, flatten, observe, replay

import aotpack
from aotpack_loader.archive import compression
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.format import media_types

VECTORS = Path(__file__).resolve().parent.parent / "spec/vectors/v1"
TOLERANCE = {"relative": 1e-4, "absolute": 1e-6}

Args = tuple[tuple[Any, ...], dict[str, Any]]
Json = Any


class Case(NamedTuple):
    """A valid vector: a model, its example inputs, and inputs of further calls."""

    about: str
    covers: list[str]
    model: Callable[[], nn.Module]
    inputs: Callable[[], Args]
    dynamic_shapes: Any = None
    more: Callable[[], Args] | None = None


# ---------------------------------------------------------------- models


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.second(torch.tanh(self.first(x))), y)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x))).mean((2, 3))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.sin(self.embed(tokens)))


class Nested(nn.Module):
    """Arguments in containers and by keyword; writes to one input, returns a view of another and an input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, batch: dict[str, Any], *, scale: float, carry: torch.Tensor) -> dict[str, Any]:
        x = batch["x"]
        mixed = x @ self.weight * scale / batch["count"] + batch["parts"][0]
        carry.add_(mixed.detach().sum(0))
        return {"mixed": mixed, "turned": batch["parts"][1].t(), "carry": carry, "version": 1}


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        hidden = torch.relu(x @ self.weight)
        low, high = hidden.chunk(2, dim=1)
        return hidden.sum(), (low, high), hidden.argmax(1), [x.sin(), None], x.shape[0]


class Pair(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


@dataclasses.dataclass
class Report:
    pair: Pair
    norm: torch.Tensor


torch.utils._pytree.register_dataclass(Report)


class Recorded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> Report:
        logits = self.layer(x)
        return Report(Pair(logits.square().mean(), logits), logits.detach().norm())


@dataclasses.dataclass
class Unregistered:
    """Torch's tree functions do not look inside."""

    loss: torch.Tensor
    logits: torch.Tensor


class RecordedAsLeaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> Unregistered:
        logits = self.layer(x)
        return Unregistered(logits.square().mean(), logits)


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, batch: dict[str, Any], seen: list[Any]) -> Any:
        seen.append(batch.pop("old"))
        seen[0] = batch["x"] * self.scale
        batch["nested"] = {"twice": seen[0] * 2, "seen": seen}
        return batch, seen[0].sum()


class Picked(nn.Module):
    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, rows).sin()


class Slope(nn.Module):
    """A loss on the slope of a network at its argument, which it makes require a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            height = self.layer(x.requires_grad_()).tanh()
            (slope,) = torch.autograd.grad(height.sum(), x, create_graph=True)
            return height.detach(), (slope.square().sum(1) - 1).square().mean()


class Attention(nn.Module):
    """One pre-norm block as in GPT-2, without dropout."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Layer(nn.Module):
    """Compiled once, wherever it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(6, 4)

    @torch.compiler.nested_compile_region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Sizes(nn.Module):
    """Results, views and saved values that depend on a size that varies; one tensor passed twice; a constant tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor, again: torch.Tensor) -> tuple[Any, ...]:
        count = x.shape[0]
        scaled = x * self.weight * torch.tensor([1.0, -2.0, 0.5]) / count
        return scaled.sum(0).expand(count, 3) + again, x.view(count * 3), scaled.exp().reshape(3 * count)[count:], 2 * count + 1


def _sizes_inputs(count: int) -> Args:
    x = torch.randn(count, 3, requires_grad=True)
    return (x, x), {}


def _nested_inputs() -> Args:
    parts = [torch.randn(3), torch.randn(2, 4, requires_grad=True)]
    batch = {"x": torch.randn(5, 3, requires_grad=True), "parts": parts, "count": 5}
    return (batch,), {"scale": 0.5, "carry": torch.randn(3)}


BATCH = torch.export.Dim("batch", min=2, max=64)

VALID: dict[str, Case] = {
    "scale": Case("y = x * scale: the smallest", [], Scale, lambda: ((torch.randn(4, requires_grad=True),), {})),
    "mlp": Case("two layers and a loss", [], Mlp, lambda: ((torch.randn(5, 6), torch.randint(3, (5,))), {})),
    "batchnorm": Case("buffers mutated in train mode", ["R1"], Normed, lambda: ((torch.randn(3, 2, 4, 4),), {})),
    "tied_weights": Case("one parameter under two names", ["C4"], Tied, lambda: ((torch.randint(7, (2, 3)),), {})),
    "dynamic_batch": Case(
        "a batch size from 2 to 64",
        ["A2"],
        Mlp,
        lambda: ((torch.randn(5, 6), torch.randint(3, (5,))), {}),
        dynamic_shapes={"x": {0: BATCH}, "y": {0: BATCH}},
        more=lambda: ((torch.randn(9, 6), torch.randint(3, (9,))), {}),
    ),
    "nested_kwargs": Case(
        "containers, keywords, constants, an aliased result, a mutated input that is returned", ["R1"], Nested, _nested_inputs
    ),
    "several_outputs": Case(
        "views of an intermediate, an integer tensor, none and a number among the results",
        [],
        Several,
        lambda: ((torch.randn(3, 4, requires_grad=True),), {}),
    ),
    "record_output": Case("a dataclass that holds a named tuple", [], Recorded, lambda: ((torch.randn(4, 3),), {})),
    "record_leaf": Case(
        "a dataclass that is one leaf to torch's tree functions", [], RecordedAsLeaf, lambda: ((torch.randn(4, 3),), {})
    ),
    "containers": Case(
        "a dictionary and a list of the caller's that are changed, and returned",
        ["A17", "A18", "C36"],
        Changing,
        lambda: (({"x": torch.randn(3, requires_grad=True), "old": torch.randn(2)}, [torch.randn(2)]), {}),
    ),
    "refusing_values": Case(
        "an operator that may refuse the values of a call, and its line",
        [],
        Picked,
        lambda: ((torch.randn(4, 3, requires_grad=True), torch.tensor([2, 0])), {}),
    ),
    "requires_grad_set": Case(
        "a gradient with respect to an argument, which the model makes require one",
        ["A16"],
        Slope,
        lambda: ((torch.randn(3, 2),), {}),
    ),
    "attention": Case("a block of GPT-2", [], Attention, lambda: ((torch.randn(2, 4, 8, requires_grad=True),), {})),
    "sizes": Case(
        "sizes in results, views and saved values; one tensor given twice; a constant tensor",
        ["A2", "A8"],
        Sizes,
        lambda: _sizes_inputs(4),
        dynamic_shapes={"x": {0: torch.export.Dim("count", min=2, max=9)}, "again": {0: torch.export.Dim("count", min=2, max=9)}},
        more=lambda: _sizes_inputs(7),
    ),
    "regions": Case(
        "three layers in a nested compile region: one subgraph, called three times",
        ["G7"],
        lambda: nn.Sequential(nn.Linear(4, 4), Layer(), Layer(), Layer()),
        lambda: ((torch.randn(3, 4, requires_grad=True),), {}),
    ),
}


# ---------------------------------------------------------------- valid vectors


def write_valid(name: str, case: Case, folder: Path) -> None:
    """Build the bundle of ``case`` and record what the original does with its inputs."""
    torch.manual_seed(list(VALID).index(name))
    model = case.model()
    args, kwargs = case.inputs()
    bundle = folder / BUNDLE
    report = aotpack.build(
        copy.deepcopy(model), *_copied((args, kwargs)), out=bundle, targets=["portable"], self_test=True,
        dynamic_shapes=case.dynamic_shapes, name=name,
    )  # fmt: skip
    with Bundle.open(bundle) as opened:
        methods = opened.program.methods
    tensors: dict[str, torch.Tensor] = {}
    calls = []
    given = {"train": ("train", args, kwargs), "infer": ("infer", args, kwargs)}
    if case.more is not None:
        given["train_more"] = ("train", *case.more())
    for prefix, (method_name, call_args, call_kwargs) in given.items():
        method, training = methods[method_name], method_name == "train"
        copied_args, copied_kwargs = _copied((call_args, call_kwargs))
        leaves = flatten(method.inputs, (copied_args, copied_kwargs))
        tensors |= {f"{prefix}.input.{i}": t.detach().clone() for i, t in enumerate(leaves) if isinstance(t, torch.Tensor)}
        first = {id(leaf): i for i, leaf in reversed(list(enumerate(leaves))) if isinstance(leaf, torch.Tensor)}
        same = {str(i): first[id(leaf)] for i, leaf in enumerate(leaves) if first.get(id(leaf), i) != i}
        seen, others = observe(copy.deepcopy(model), method, copied_args, copied_kwargs, training=training, grad=training)
        tensors |= {f"{prefix}.{key}": value.contiguous().clone() for key, value in seen.items()}
        call = {"prefix": prefix, "method": method_name, "training": training, "grad": training, "others": others}
        calls.append(call | {"same": same} if same else call)
    save_file(tensors, folder / TENSORS)
    expect = {
        "about": case.about,
        "covers": case.covers,
        "producer": {"aotpack": aotpack.__version__, "torch": str(torch.__version__)},
        "bundle": report.digest,
        "file": "sha256:" + hashlib.sha256(bundle.read_bytes()).hexdigest(),
        "tolerance": TOLERANCE,
        "calls": calls,
    }
    _write_json(folder / EXPECT, expect)


def _copied(given: Args) -> Args:
    done: dict[int, torch.Tensor] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in done:
            done[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return done[id(tensor)]

    args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, copied, given)
    return args, kwargs


def _write_json(path: Path, value: Json) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


# ---------------------------------------------------------------- invalid vectors


class Documents:
    """The documents of a bundle as plain JSON; :meth:`files` makes the digests right again, from the bottom up."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as archive:
            self.others = {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
        self.top = json.loads(self.others.pop("index.json"))
        self.index = self._take(self.top["manifests"][0])
        self.manifest = self._take(self.index["manifests"][0])
        self.program = self._take(self.manifest["config"])
        self.target = self._take(self.manifest["layers"][0])
        self.method: Json = {}
        self.forward: Json = {}

    def reduce(self, method: str) -> None:
        """Keep what ``method`` needs (``train``: both): what is broken is elsewhere, and the files stay small."""
        del self.program["self_test"]
        methods = self.program["methods"]
        if method == "infer":
            del methods["train"]
        self.method = methods[method]
        graphs = [item["forward"] for item in methods.values()]
        graphs += [item["backward"]["graph"] for item in methods.values() if "backward" in item]
        kept = {item["digest"] for item in (*graphs, *self.program["weights"], self.manifest["layers"][0])}
        self.manifest["layers"] = [layer for layer in self.manifest["layers"] if layer["digest"] in kept]
        names = {"oci-layout", *map(_blob_name, kept)}
        self.others = {name: data for name, data in self.others.items() if name in names}
        descriptor = self.method["forward"]
        raw = int(descriptor["annotations"][media_types.ANNOTATION_RAW_SIZE])
        self.forward = json.loads(compression.decompress(self.others[_blob_name(descriptor["digest"])], raw))

    def replace(self, descriptor: Json, data: bytes, raw: bytes | None = None) -> None:
        """Replace a blob, and every descriptor of it."""
        self.others.pop(_blob_name(descriptor["digest"]), None)
        fields: Json = {"digest": _digest(data), "size": len(data)}
        if raw is not None:
            notes = {media_types.ANNOTATION_RAW_SIZE: str(len(raw)), media_types.ANNOTATION_RAW_DIGEST: _digest(raw)}
            fields["annotations"] = notes
        old = descriptor["digest"]
        for document in (self.program, self.manifest):
            _update(document, old, fields)
        self.others[_blob_name(fields["digest"])] = data

    def set_forward(self) -> None:
        """Store the edited forward graph."""
        raw = _dump(self.forward)
        self.replace(self.method["forward"], compression.compress(raw), raw)

    def files(self) -> dict[str, bytes]:
        files = dict(self.others)

        def put(document: Json, descriptor: Json) -> None:
            data = _dump(document)
            files[_blob_name(_digest(data))] = data
            descriptor.update(digest=_digest(data), size=len(data))

        put(self.program, self.manifest["config"])
        put(self.target, self.manifest["layers"][0])
        put(self.manifest, self.index["manifests"][0])
        put(self.index, self.top["manifests"][0])
        files["index.json"] = _dump(self.top)
        return dict(sorted(files.items()))

    def _take(self, descriptor: Json) -> Json:
        return json.loads(self.others.pop(_blob_name(descriptor["digest"])))


def _blob_name(digest: str) -> str:
    return "blobs/sha256/" + digest.removeprefix("sha256:")


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _dump(document: Json) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _update(node: Json, old: str, fields: Json) -> None:
    if isinstance(node, dict):
        if node.get("digest") == old:
            node.update(fields)
        node = list(node.values())
    for child in node if isinstance(node, list) else ():
        _update(child, old, fields)


def _tar(files: list[tuple[str, bytes]], kind: bytes = tarfile.REGTYPE) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(data), kind if name == "blobs/link" else tarfile.REGTYPE
            archive.addfile(info, io.BytesIO(data))
    data = buffer.getvalue()
    end = len(data.rstrip(b"\0"))
    return data[: -(-end // 512) * 512 + 1024]  # two blocks of zeros, not a record of 10 KiB


class Invalid(NamedTuple):
    """An invalid vector: the rule it breaks, the error, and the edit that breaks it (of documents, or of the bytes).

    ``backward``: the edit needs the method ``train``; the others do with ``infer``, which takes half the space.
    """

    constraint: str
    contains: str
    edit: Callable[[Documents], object] | None = None
    damage: Callable[[bytes, Documents], bytes] | None = None
    kind: str = "CorruptBundleError"
    backward: bool = False


def _set(node: Json, key: Json, value: Json) -> None:
    node[key] = value


def _flip(descriptor: Callable[[Documents], Json], offset: int) -> Callable[[bytes, Documents], bytes]:
    """Flip one bit of a blob, found in the file by its content."""

    def damage(data: bytes, documents: Documents) -> bytes:
        digest = descriptor(documents)["digest"]
        name = _blob_name(digest).encode()
        at = data.index(name) + 512 + offset % descriptor(documents)["size"]
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return damage


def _flip_header(data: bytes, documents: Documents) -> bytes:
    at = data.index(b"oci-layout\0") + 136  # its time, which no reader looks at
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _graph(edit: Callable[[Json], object]) -> Callable[[Documents], object]:
    def apply(documents: Documents) -> None:
        edit(documents.forward)
        documents.set_forward()

    return apply


def _method(edit: Callable[[Json], object]) -> Callable[[Documents], object]:
    return lambda documents: edit(documents.method)


def _state(**fields: Any) -> Callable[[Documents], object]:
    return lambda documents: documents.program["state"][0].update(fields)


def _weights(change: Callable[[Json], object], extra: bytes = b"") -> Callable[[Documents], object]:
    """Rewrite the header of the stored weights."""

    def apply(documents: Documents) -> None:
        descriptor = documents.program["weights"][0]
        data = documents.others[_blob_name(descriptor["digest"])]
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        change(header)
        text = _dump(header)
        text += b" " * (-(8 + len(text)) % 64)
        documents.replace(descriptor, len(text).to_bytes(8, "little") + text + data[8 + length :] + extra)

    return apply


def _second(entry: Json, **fields: Any) -> Json:
    return {**entry, **fields}


def _everywhere(documents: Documents, descriptor: Json, fields: Json) -> None:
    for document in (documents.program, documents.manifest):
        _update(document, descriptor["digest"], fields)


def _second_program(documents: Documents) -> None:
    def add(document: Json, media_type: str) -> Json:
        data = _dump(document)
        documents.others[_blob_name(_digest(data))] = data
        return {"mediaType": media_type, "digest": _digest(data), "size": len(data)}

    program = add({**documents.program, "name": "other"}, media_types.PROGRAM)
    manifest = add({**documents.manifest, "config": program}, media_types.OCI_MANIFEST)
    documents.index["manifests"].append(manifest)


def _misaligned(header: Json) -> None:
    header["__aotpack_padding.0"] = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
    header["scale"]["data_offsets"] = [2, 18]


def _drop_layer(documents: Documents, descriptor: Json) -> None:
    kept = [layer for layer in documents.manifest["layers"] if layer["digest"] != descriptor["digest"]]
    documents.manifest["layers"] = kept


def _with_given_argument(method: Json) -> None:
    """The only result is an argument's own object, and so is a further argument."""
    method["inputs"]["items"][0]["items"].append({"type": "given", "path": [0, 0]})


def _with_update(method: Json, kind: str, path: list[int]) -> None:
    """Say that a dictionary of the caller's is changed, or that a further result is the caller's object."""
    if kind == "given":
        method["outputs"] = {"type": "tuple", "items": [method["outputs"], {"type": "given", "path": path}]}
    else:
        method["updates"] = [{"path": path, "tree": {"type": "dict", "keys": [], "items": []}}]


INVALID: dict[str, Invalid] = {
    # container
    "truncated": Invalid("T6", "truncated", damage=lambda data, _: data[: len(data) // 2]),
    "no_end_marker": Invalid("T6", "end marker", damage=lambda data, _: data[:-512]),
    "data_after_end": Invalid("T6", "after the end marker", damage=lambda data, _: data + b"x" * 512),
    "link_entry": Invalid(
        "T1", "only files and directories", damage=lambda data, _: data[:-1024] + _tar([("blobs/link", b"")], tarfile.SYMTYPE)
    ),
    "foreign_entry": Invalid("T2", "which no bundle has", damage=lambda data, _: data[:-1024] + _tar([("../evil", b"x")])),
    "duplicate_entry": Invalid("T3", "second entry", damage=lambda data, _: data[:-1024] + _tar([("index.json", b"{}")])),
    "bad_checksum": Invalid("T4", "checksum", damage=_flip_header),
    "padding_not_zero": Invalid("T5", "is not zero", damage=lambda data, _: data[:-1025] + b"x" + data[-1024:]),
    "layout_version": Invalid("T7", "imageLayoutVersion", lambda d: _set(d.others, "oci-layout", b'{"imageLayoutVersion":"9"}')),
    # descriptors
    "malformed_digest": Invalid("D1", "is not a valid", lambda d: _set(d.program["weights"][0], "digest", "md5:00")),
    "wrong_size": Invalid("D2", "bytes, expected", lambda d: _everywhere(d, d.program["weights"][0], {"size": 1})),
    "flipped_program": Invalid("D3", "has digest", damage=_flip(lambda d: d.manifest["config"], 40)),
    "flipped_graph": Invalid("D3", "has digest", damage=_flip(lambda d: d.method["forward"], 20)),
    "flipped_weights": Invalid("D3", "has digest", damage=_flip(lambda d: d.program["weights"][0], -1)),
    "graph_media_type": Invalid(
        "D4", "not a graph", lambda d: _everywhere(d, d.method["forward"], {"mediaType": "application/json"})
    ),
    "no_raw_size": Invalid("D5", "does not say its size", lambda d: d.method["forward"].pop("annotations")),
    "wrong_raw_size": Invalid(
        "D5", "declares", lambda d: _set(d.method["forward"]["annotations"], media_types.ANNOTATION_RAW_SIZE, "7")
    ),
    "huge_raw_size": Invalid(
        "D5", "the limit is", lambda d: _set(d.method["forward"]["annotations"], media_types.ANNOTATION_RAW_SIZE, str(1 << 40))
    ),
    "unlisted_blob": Invalid("D7", "is not a layer", lambda d: _drop_layer(d, d.method["forward"])),
    # manifests
    "two_images": Invalid(
        "M1", "exactly one", lambda d: d.top["manifests"].append(d.top["manifests"][0]), kind="NotABundleError"
    ),
    "other_artifact": Invalid(
        "M2", "not of an aotpack bundle", lambda d: _set(d.index, "artifactType", "text/plain"), kind="NotABundleError"
    ),
    "manifest_artifact": Invalid("M3", "artifactType", lambda d: _set(d.manifest, "artifactType", "text/plain")),
    "config_type": Invalid("M3", "not a program", lambda d: _set(d.manifest["config"], "mediaType", "application/json")),
    "two_programs": Invalid("M4", "not of one program", _second_program),
    "no_target_layer": Invalid("M5", "is not a target", lambda d: _set(d.manifest["layers"][0], "mediaType", "application/json")),
    "target_annotation": Invalid(
        "M6", "annotated as another", lambda d: _set(d.manifest["annotations"], media_types.ANNOTATION_TARGET, "other")
    ),
    # version
    "unknown_major": Invalid(
        "V1", "format version 2.0", lambda d: _set(d.program, "format", {"major": 2, "minor": 0}), kind="UnsupportedVersionError"
    ),
    "unknown_feature": Invalid(
        "V2", "time_travel", lambda d: _set(d.program, "features", ["time_travel"]), kind="UnsupportedVersionError"
    ),
    # the program
    "sets_requires_grad_alone": Invalid(
        "C33", "C33:", _method(lambda method: method["leaves"][0].update(requires_grad=False, sets_requires_grad=True))
    ),
    "name_twice": Invalid("C1", "C1:", lambda d: d.program["state"].append(d.program["state"][0])),
    "reserved_name": Invalid("C2", "C2:", _state(name="aotpack.scale")),
    "name_below_name": Invalid(
        "C2", "C2:", lambda d: d.program["state"].append(_second(d.program["state"][0], name="scale.scale"))
    ),
    "stride_length": Invalid("C3", "C3:", _state(stride=[1, 1])),
    "tied_to_nothing": Invalid("C4", "C4:", _state(tied_to="other")),
    "mode_served_twice": Invalid(
        "C5", "C5:", lambda d: _set(d.program["methods"]["infer"], "serves", d.method["serves"]), backward=True
    ),
    "no_methods": Invalid("C5", "C5:", lambda d: _set(d.program, "methods", {})),
    "leaf_count": Invalid("C6", "C6:", _method(lambda m: _set(m, "outputs", {"type": "tuple", "items": []}))),
    "unknown_parameter": Invalid("C7", "C7:", _method(lambda m: _set(m, "primals", [_other_name(p) for p in m["primals"]]))),
    "mutated_primal": Invalid("C8", "C8:", _method(lambda m: _set(m, "mutations", [{"primal": 9, "output": 0}]))),
    "result_out_of_range": Invalid("C9", "C9:", _method(lambda m: _set(m["results"][0], "output", 99))),
    "gradient_count": Invalid("C10", "C10:", _method(lambda m: m["backward"]["gradients"].append(None)), backward=True),
    "saved_out_of_range": Invalid(
        "C11", "C11:", _method(lambda m: _set(m["backward"]["saved"], 0, {"type": "primal", "primal": 99})), backward=True
    ),
    "tangent_of_nothing": Invalid(
        "C12", "C12:", _method(lambda m: _set(m["backward"]["tangents"][0], "output", 99)), backward=True
    ),
    "bad_expression": Invalid("C13", "C13:", _method(lambda m: _set(m, "constraints", ["s0 +"]))),
    "unknown_symbol": Invalid("C13", "C13: unknown symbols", _method(lambda m: _set(m, "constraints", ["s0 == 4"]))),
    "expression_too_deep": Invalid(
        "E2", "nested too deeply", _method(lambda m: _set(m, "constraints", ["(" * 101 + "1" + ")" * 101]))
    ),
    "expression_calls": Invalid("E1", "unexpected", _method(lambda m: _set(m, "constraints", ["__import__('os')"]))),
    "graph_arity": Invalid("C14", "C14:", _method(lambda m: _set(m, "num_outputs", m["num_outputs"] + 1))),
    "executable_arity": Invalid("C14", "C14:", lambda d: _set(d.target, "executables", {"infer.forward": _executable(d)})),
    "given_argument": Invalid("C36", "C36: an argument", _method(_with_given_argument)),
    "given_nowhere": Invalid("C36", "C36: no argument is at", _method(lambda m: _with_update(m, "given", [0, 7]))),
    "update_of_a_tensor": Invalid("C36", "C36: no such container", _method(lambda m: _with_update(m, "dict", [0, 0]))),
    "containers_unsaid": Invalid("C36", "needs the feature", _method(lambda m: _with_update(m, "given", [0, 0]))),
    "inputs_not_args_kwargs": Invalid("A1", "keyword arguments", _method(lambda m: _set(m, "inputs", {"type": "leaf"}))),
    "unbound_symbol": Invalid("A2", "determines", _method(lambda m: _set(m, "symbols", [{"name": "s0", "minimum": 2}]))),
    # graphs
    "input_values": Invalid("G1", "G1:", _graph(lambda g: g["input_values"].pop())),
    "value_twice": Invalid("G2", "G2:", _graph(lambda g: g["nodes"].append(g["nodes"][0]))),
    "undefined_value": Invalid("G3", "G3:", _graph(lambda g: _set(g, "outputs", [{"type": "value", "name": "nothing"}]))),
    "undefined_subgraph": Invalid(
        "G4", "G4:", _graph(lambda g: g["nodes"][0]["args"].append({"type": "graph", "name": "nothing"}))
    ),
    "unknown_builtin": Invalid("G5", "no built-in", _graph(lambda g: _set(g["nodes"][0], "op", "builtin.exec"))),
    "undeclared_namespace": Invalid("G6", "may not use", _graph(lambda g: _set(g["nodes"][0], "op", "prim.Print.default"))),
    "file_operator": Invalid("G6", "may not use", _graph(lambda g: _set(g["nodes"][0], "op", "aten.from_file.default"))),
    "unknown_operator": Invalid(
        "G6", "does not have", _graph(lambda g: _set(g["nodes"][0], "op", "aten.nothing.default")), kind="UnsupportedVersionError"
    ),
    # weights
    "weights_header": Invalid("W1", "three fields", _weights(lambda h: h["scale"].pop("shape"))),
    "weights_hole": Invalid("W2", "the blob at", _weights(lambda h: None, extra=bytes(4))),
    "weights_offsets": Invalid("W2", "does not fit its offsets", _weights(lambda h: _set(h["scale"], "shape", [5]))),
    "weights_dtype": Invalid("W3", "is stored as", _state(dtype="int32", requires_grad=False)),
    "weights_out_of_range": Invalid("W4", "is needed", _state(offset=1)),
    "weights_misaligned": Invalid("W6", "not a multiple of", _weights(_misaligned, extra=bytes(2))),
    "weights_missing": Invalid("W5", "none of", _state(storage="other")),
}


def _other_name(primal: Json) -> Json:
    return {**primal, "name": "other"} if primal["type"] == "parameter" else primal


def _executable(documents: Documents) -> Json:
    return {"code": documents.method["forward"], "inputs": [{"type": "value", "index": 99}], "outputs": [0]}


def write_invalid(name: str, case: Invalid, folder: Path) -> None:
    """Break one rule of the valid vector ``scale``."""
    documents = Documents(VECTORS / "valid/scale" / BUNDLE)
    documents.reduce("train" if case.backward else "infer")
    if case.edit is not None:
        case.edit(documents)
    data = _tar(list(documents.files().items()))
    if case.damage is not None:
        data = case.damage(data, documents)
    (folder / BUNDLE).write_bytes(data)
    expect = {"constraint": case.constraint, "kind": case.kind, "contains": case.contains}
    _write_json(folder / EXPECT, expect)


# ---------------------------------------------------------------- writing


def write(kind: str, name: str) -> None:
    """Write one vector under a temporary name, replay it, and put it in its place."""
    final = VECTORS / kind / name
    if final.exists():
        raise FileExistsError(f"{final} exists, and vectors are never changed: add a case with another name")
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=VECTORS) as scratch:
        folder = Path(scratch) / kind / name
        folder.mkdir(parents=True)
        if kind == "valid":
            write_valid(name, VALID[name], folder)
        else:
            write_invalid(name, INVALID[name], folder)
        print(f"{kind}/{name}: {replay(folder)}", flush=True)
        folder.rename(final)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="show the cases and whether they are there")
    options = parser.parse_args()
    failed = 0
    for kind, names in (("valid", list(VALID)), ("invalid", list(INVALID))):
        for name in names:
            there = (VECTORS / kind / name).exists()
            if options.list:
                print(f"{kind}/{name}" + ("" if there else " (missing)"))
            elif not there:
                try:
                    write(kind, name)
                except AssertionError as error:
                    failed += 1
                    print(f"{kind}/{name}: NOT WRITTEN: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

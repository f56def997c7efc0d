"""The documents of a bundle as plain JSON, for edits that make vectors which no build writes (vectors.py)."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from aotpack_loader.archive import compression
from aotpack_loader.format import donations, media_types, schema, subclasses

Json = Any


class Documents:
    """The documents of a bundle as plain JSON, with one of its targets: the first, or that called ``target``.

    :meth:`files` updates the digests from the bottom up.
    """

    def __init__(self, path: Path, target: str = "") -> None:
        with tarfile.open(path) as archive:
            self.others = {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
        self.top = json.loads(self.others.pop("index.json"))
        self.index = self._take(self.top["manifests"][0])
        entries = self.index["manifests"]
        self.entry = next(item for item in entries if target in ("", item["annotations"][media_types.ANNOTATION_TARGET]))
        self.manifest = self._take(self.entry)
        self.program = self._take(self.manifest["config"])
        self.target = self._take(self.manifest["layers"][0])
        self.method: Json = {}
        self.forward: Json = {}

    def reduce(self, method: str, *, whole: bool) -> None:
        """Keep only what ``method`` needs (``train``: both methods), so that files stay small.

        The broken part is elsewhere.
        """
        for informative in ("self_test", "origins"):
            self.program.pop(informative, None)
        methods = self.program["methods"]
        if method not in methods:
            method = next(iter(methods))
        if method == "infer" and not whole:
            methods.pop("train", None)
        self.method = methods[method]
        graphs = [item["forward"] for item in methods.values()]
        graphs += [item["backward"]["graph"] for item in methods.values() if "backward" in item]
        kept = {item["digest"] for item in (*graphs, *self.program.get("weights", ()), self.manifest["layers"][0])}
        self.manifest["layers"] = [layer for layer in self.manifest["layers"] if layer["digest"] in kept]
        names = {"oci-layout", *map(blob_name, kept)}
        self.others = {name: data for name, data in self.others.items() if name in names}
        self.open_method(self.method)

    def open_method(self, method: Json) -> None:
        """Select one method, so that its forward graph can be edited."""
        self.method, descriptor = method, method["forward"]
        raw = int(descriptor["annotations"][media_types.ANNOTATION_RAW_SIZE])
        self.forward = json.loads(compression.decompress(self.others[blob_name(descriptor["digest"])], raw))

    def set_weights(self, change: Callable[[Json], object], extra: bytes = b"") -> None:
        """Rewrite the header of the stored weights."""
        descriptor = self.program["weights"][0]
        data = self.others[blob_name(descriptor["digest"])]
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        change(header)
        text = dump(header)
        text += b" " * (-(8 + len(text)) % 64)
        self.replace(descriptor, len(text).to_bytes(8, "little") + text + data[8 + length :] + extra)

    def replace(self, descriptor: Json, data: bytes, raw: bytes | None = None) -> None:
        """Replace a blob and all its descriptors."""
        self.others.pop(blob_name(descriptor["digest"]), None)
        fields: Json = {"digest": digest_of(data), "size": len(data)}
        if raw is not None:
            notes = {media_types.ANNOTATION_RAW_SIZE: str(len(raw)), media_types.ANNOTATION_RAW_DIGEST: digest_of(raw)}
            fields["annotations"] = notes
        old = descriptor["digest"]
        for document in (self.program, self.manifest):
            update(document, old, fields)
        self.others[blob_name(fields["digest"])] = data

    def add_blob(self, media_type: str, data: bytes, raw: bytes | None = None) -> Json:
        """Store a blob that nothing refers to yet. ``raw`` is its decompressed content."""
        self.others[blob_name(digest_of(data))] = data
        found: Json = {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}
        if raw is not None:
            found["annotations"] = {
                media_types.ANNOTATION_RAW_SIZE: str(len(raw)), media_types.ANNOTATION_RAW_DIGEST: digest_of(raw)
            }  # fmt: skip
        return found

    def add_target(self, target: Json, blobs: list[Json], platform: Json) -> None:
        """Add a manifest after the existing ones. The program must not be edited afterwards."""
        data = dump(self.program)
        self.manifest["config"].update(digest=digest_of(data), size=len(data))
        first = self.add_blob(media_types.TARGET, dump(target))
        notes = {media_types.ANNOTATION_TARGET: target["name"]}
        layers = [first, *self.manifest["layers"][1:], *blobs]
        manifest = {**self.manifest, "annotations": notes, "layers": list({item["digest"]: item for item in layers}.values())}
        found = self.add_blob(media_types.OCI_MANIFEST, dump(manifest))
        self.index["manifests"].append({**found, "annotations": notes, "platform": platform})

    def arities(self) -> list[tuple[str, int, int, list[int]]]:
        """For each graph its key, the numbers of inputs and outputs, and the inputs that a backward may overwrite."""
        program = msgspec.convert(self.program, schema.Program)
        entries = {entry.name: entry for entry in program.state}
        found: list[tuple[str, int, int, list[int]]] = []
        for name, method in program.methods.items():
            found.append((f"{name}.forward", *subclasses.forward_arity(method, entries), []))
            if method.backward is not None:
                arity = subclasses.backward_arity(method.backward)
                found.append((f"{name}.backward", *arity, sorted(donations.private(method))))
        return found

    def set_forward(self) -> None:
        """Store the edited forward graph."""
        raw = dump(self.forward)
        self.replace(self.method["forward"], compression.compress(raw), raw)

    def files(self) -> dict[str, bytes]:
        files = dict(self.others)

        def put(document: Json, descriptor: Json) -> None:
            data = dump(document)
            files[blob_name(digest_of(data))] = data
            descriptor.update(digest=digest_of(data), size=len(data))

        put(self.program, self.manifest["config"])
        put(self.target, self.manifest["layers"][0])
        put(self.manifest, self.entry)
        put(self.index, self.top["manifests"][0])
        files["index.json"] = dump(self.top)
        return dict(sorted(files.items()))

    def _take(self, descriptor: Json) -> Json:
        return json.loads(self.others.pop(blob_name(descriptor["digest"])))


def blob_name(digest: str) -> str:
    return "blobs/sha256/" + digest.removeprefix("sha256:")


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def dump(document: Json) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def update(node: Json, old: str, fields: Json) -> None:
    if isinstance(node, dict):
        if node.get("digest") == old:
            node.update(fields)
        node = list(node.values())
    for child in node if isinstance(node, list) else ():
        update(child, old, fields)


def tar(files: list[tuple[str, bytes]], kind: bytes = tarfile.REGTYPE) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(data), kind if name == "blobs/link" else tarfile.REGTYPE
            archive.addfile(info, io.BytesIO(data))
    data = buffer.getvalue()
    end = len(data.rstrip(b"\0"))
    return data[: -(-end // 512) * 512 + 1024]  # two blocks of zeros instead of a record of 10 KiB

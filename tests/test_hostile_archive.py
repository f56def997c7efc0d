"""Archives that are damaged, or made to do damage: each ends in one kind of error, and nothing of it is used."""

from __future__ import annotations

import io
import json
import os
import random
import resource
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.archive import (
    Documents,
    Edit,
    digest_of,
    members,
    open_and_use,
    pack,
    safetensors_blob,
    tiny_graph,
    use,
    write_tiny,
)

import aotpack_loader
from aotpack_loader.archive import compression
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.layout import open_layout
from aotpack_loader.archive.weights import View, WeightMap, read_header
from aotpack_loader.errors import (
    BundleError,
    BundleNotFoundError,
    CorruptBundleError,
    NotABundleError,
    UnsupportedVersionError,
)
from aotpack_loader.format import media_types
from aotpack_loader.format.codec import encode
from aotpack_loader.format.schema import Descriptor, StateEntry

BLOCK = 512


# ---------------------------------------------------------------- hostile containers


def _make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", b"x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty file"),
        (_zip(), "a zip archive"),
        (b"\x80\x02}q\x00.", "a pickle"),
        (b"\x7fELF" + bytes(600), "a shared library"),
        (safetensors_blob({}), "a safetensors file"),
        (bytes(2048), "unknown kind"),
        (b"\xff" * 3000, "unknown kind"),
        (pack({"hello": b"world"}), "a tar archive, but not one of an OCI"),
        (pack({"oci-layout": b"{}"}, format=tarfile.GNU_FORMAT), "a tar archive, but not one of an OCI"),
        (pack({"index.json": b"{}"}), "no oci-layout"),
    ],
)
def test_what_is_no_bundle_is_called_by_its_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m"
    path.write_bytes(content)
    with pytest.raises(NotABundleError, match=message):
        Bundle.open(path)


def test_what_is_not_there(tmp_path: Path, tiny: Path) -> None:
    for path in (tmp_path / "missing", tiny / "below", Path("nul\0byte")):
        with pytest.raises(BundleNotFoundError):
            Bundle.open(path)
    with pytest.raises(FileNotFoundError):
        Bundle.open(tmp_path / "missing")
    with pytest.raises(NotABundleError, match="no oci-layout"):
        Bundle.open(tmp_path)
    with pytest.raises(NotABundleError, match="neither a file nor a directory"):
        Bundle.open("/dev/null")


_ENTRY = {"mediaType": media_types.OCI_INDEX, "size": 1}


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 200_000,
        b'{"schemaVersion": 2, "manifests": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        *[
            json.dumps({"schemaVersion": 2, "manifests": [{**_ENTRY, "digest": value}]}).encode()
            for value in (["x"] * 71, {str(i): 1 for i in range(71)}, 7, None, "\ud800", "sha256:" + "é" * 64)
        ],
        b'{"manifests": [' + b"1" * 5000 + b"]}",
        b'{"manifests": [[[]]]}',
        b'{"manifests": [{"digest": true, "size": [], "mediaType": {}}]}',
    ],
    ids=range(11),
)
def test_an_index_of_other_types(tmp_path: Path, text: bytes) -> None:
    """A load looks for a record of an earlier one before it decodes the index."""
    path = tmp_path / "m"
    path.write_bytes(pack({"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": text}))
    with pytest.raises(BundleError):
        aotpack_loader.load(path)


def test_truncated_anywhere(tiny: Path) -> None:
    data = tiny.read_bytes()
    for length in [*range(0, len(data), 173), len(data) - 1, len(data) - BLOCK]:
        tiny.write_bytes(data[:length])
        with pytest.raises(BundleError):
            open_and_use(tiny)


def test_every_flipped_byte_of_a_blob_is_found(tiny: Path) -> None:
    data = tiny.read_bytes()
    with tarfile.open(tiny) as archive:
        blobs = [(m.name, m.offset_data, m.size) for m in archive if m.name.startswith("blobs/")]
    for name, start, size in blobs:
        for position in range(start, start + size, max(1, size // 5)):
            tiny.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
            with pytest.raises(CorruptBundleError) as caught:
                open_and_use(tiny)
            assert name.rpartition("/")[2] in str(caught.value)


def test_verify_lists_every_bad_blob(tmp_path: Path) -> None:
    path = tmp_path / "m"
    write_tiny(path, layout="directory")
    with Bundle.open(path) as bundle:
        graph, weights = bundle.descriptors()[-2:]
        (path / "blobs/sha256" / graph.digest[7:]).write_bytes(b"x" * graph.size)
        (path / "blobs/sha256" / weights.digest[7:]).unlink()
        with pytest.raises(CorruptBundleError) as caught:
            bundle.verify()
    assert [problem.where for problem in caught.value.problems] == [graph.digest, weights.digest]
    assert "Damaged blobs of the bundle" in caught.value.summary


def _header(name: str, size: int = 0, **changes: Any) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    for key, value in changes.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.USTAR_FORMAT)


def _resum(header: bytes) -> bytes:
    """Make the checksum of a header right again."""
    blank = header[:148] + b" " * 8 + header[156:]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


ANY_BLOB = "blobs/sha256/" + "0" * 64


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (_header("index.json"), "second entry"),
        (_header("../../etc/passwd"), "no bundle has"),
        (_header("/etc/passwd"), "no bundle has"),
        (_header("blobs/sha256/../x"), "no bundle has"),
        (_header("./index.json"), "no bundle has"),
        (_header(ANY_BLOB.upper()), "no bundle has"),
        (_header(ANY_BLOB[:-1]), "no bundle has"),
        (_header(ANY_BLOB, type=tarfile.SYMTYPE, linkname="/etc/passwd"), "only files and directories"),
        (_header(ANY_BLOB, type=tarfile.LNKTYPE, linkname="index.json"), "only files and directories"),
        (_header(ANY_BLOB, type=tarfile.XHDTYPE), "only files and directories"),
        (_header(ANY_BLOB, type=tarfile.XGLTYPE), "only files and directories"),
        (_header(ANY_BLOB, type=tarfile.GNUTYPE_LONGNAME), "only files and directories"),
        (_header(ANY_BLOB, type=tarfile.FIFOTYPE), "only files and directories"),
        (_header(ANY_BLOB, type=tarfile.CHRTYPE), "only files and directories"),
        (_header(ANY_BLOB, linkname="x"), "link target"),
        (_header("oci-layout/", type=tarfile.DIRTYPE), "no bundle has"),
        (_header("index.json/", type=tarfile.DIRTYPE), "no bundle has"),
        (_header("blobs/"), "not the kind"),
        (_header(ANY_BLOB, type=tarfile.DIRTYPE), "no bundle has"),
        (_header(ANY_BLOB, 8**11 - 1), "truncated"),
        (_header(ANY_BLOB, 1), "truncated"),
        (_header(ANY_BLOB, 1) + b"x" * BLOCK, "padding"),
        (_header(ANY_BLOB)[:150] + b"7" + _header(ANY_BLOB)[151:], "checksum"),
        (_resum(_header(ANY_BLOB)[:124] + b"\x80" + bytes(11) + _header(ANY_BLOB)[136:]), "octal"),
        (_resum(_header(ANY_BLOB)[:124] + b"-0000000001\0" + _header(ANY_BLOB)[136:]), "octal"),
        (_resum(_header(ANY_BLOB)[:345] + b"prefix" + _header(ANY_BLOB)[351:]), "name prefix"),
        (_resum(_header(ANY_BLOB)[:257] + b"ustar  \0" + _header(ANY_BLOB)[265:]), "ustar"),
    ],
)
def test_a_hostile_entry(tiny: Path, extra: bytes, message: str) -> None:
    data = tiny.read_bytes()
    tiny.write_bytes(data[: -2 * BLOCK] + extra + bytes(2 * BLOCK))
    with pytest.raises(CorruptBundleError, match=message):
        Bundle.open(tiny)


@pytest.mark.parametrize("tail", [b"x", b"x" * BLOCK, bytes(BLOCK - 1) + b"x", bytes(10), bytes(2 << 20), _zip()])
def test_nothing_follows_the_end(tiny: Path, tail: bytes) -> None:
    with open(tiny, "ab") as file:
        file.write(tail)
    with pytest.raises(CorruptBundleError, match="after the end marker"):
        Bundle.open(tiny)


@pytest.mark.parametrize("padding", [0, BLOCK, 18 * BLOCK])
def test_directories_and_the_padding_of_tar_programs_are_fine(tiny: Path, padding: int) -> None:
    folders = [_header(name, type=tarfile.DIRTYPE, mode=0o755) for name in ("blobs/", "blobs/sha256/")]
    tiny.write_bytes(b"".join(folders) + tiny.read_bytes() + bytes(padding))
    open_and_use(tiny)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root, blob: (blob.rename(root / "elsewhere"), blob.symlink_to("../../elsewhere")), "symbolic link"),
        (lambda root, blob: (blob.unlink(), blob.symlink_to("/etc/passwd")), "symbolic link"),
        (lambda root, blob: ((root / "blobs").rename(root / "x"), (root / "blobs").symlink_to("x")), "symbolic link"),
        (lambda root, blob: _make_fifo(blob), "not a regular file"),
        (lambda root, blob: (blob.unlink(), blob.mkdir()), "not a regular file"),
        (lambda root, blob: blob.unlink(), "it is missing"),
        (lambda root, blob: blob.write_bytes(blob.read_bytes() + b"x"), "bytes, expected"),
        (lambda root, blob: (root / "index.json").unlink(), "has no index.json"),
        (lambda root, blob: (root / "index.json").write_bytes(b" " * (5 << 20)), "larger than"),
        (lambda root, blob: (root / "oci-layout").write_bytes(b"{}"), "imageLayoutVersion None"),
        (lambda root, blob: (root / "oci-layout").write_bytes(b"["), "not valid JSON"),
        (lambda root, blob: (root / "oci-layout").write_bytes(b'{"imageLayoutVersion":"2"}'), "expected '1.0.0'"),
    ],
)
def test_a_hostile_directory(tmp_path: Path, damage: Callable[[Path, Path], object], message: str) -> None:
    root = tmp_path / "m"
    write_tiny(root, layout="directory")
    with Bundle.open(root) as bundle:
        blob = root / "blobs" / "sha256" / bundle.descriptors()[-1].digest[7:]
    damage(root, blob)
    with pytest.raises(CorruptBundleError, match=message):
        open_and_use(root)


# ---------------------------------------------------------------- hostile documents


def _edit(document: str, edit: Edit) -> Callable[[Documents], object]:
    return lambda documents: edit(getattr(documents, document))


def _add_manifest(d: Documents) -> None:
    d.index["manifests"].append(d.index["manifests"][0])


def _become_the_future(program: dict[str, Any]) -> None:
    program.clear()
    program.update(format={"major": 9, "minor": 1}, methods=3)


HOSTILE_DOCUMENTS: list[tuple[Callable[[Documents], object], type[BundleError], str]] = [
    (_edit("program", lambda p: p["format"].update(major=2)), UnsupportedVersionError, "format version 2.0"),
    (
        _edit("program", _become_the_future),
        UnsupportedVersionError,
        "format version 9.1",
    ),
    (
        _edit("program", lambda p: p.update(features=["warp"], methods={"infer": {"new": 1}})),
        UnsupportedVersionError,
        "warp",
    ),
    (_edit("program", lambda p: p.pop("format")), CorruptBundleError, "format"),
    (_edit("program", lambda p: p.pop("methods")), CorruptBundleError, "methods"),
    (_edit("program", lambda p: p["methods"]["infer"]["forward"].update(size=1)), CorruptBundleError, "not a layer"),
    (_edit("program", lambda p: p.update(self_test=dict(p["weights"][0], size=3))), CorruptBundleError, "self_test"),
    (_edit("manifest", lambda m: m["layers"].pop()), CorruptBundleError, r"program.weights\[0\]"),
    (_edit("manifest", lambda m: m["layers"].pop(0)), CorruptBundleError, "first layer"),
    (_edit("manifest", lambda m: m.update(layers=[])), CorruptBundleError, "first layer"),
    (_edit("manifest", lambda m: m["config"].update(mediaType="x")), CorruptBundleError, "not a program"),
    (_edit("manifest", lambda m: m.update(artifactType="x")), CorruptBundleError, "artifactType"),
    (
        _edit("manifest", lambda m: m["annotations"].update({"dev.aotpack.target": "x"})),
        CorruptBundleError,
        "annotated",
    ),
    (_edit("manifest", lambda m: m.update(schemaVersion=1)), CorruptBundleError, "schemaVersion"),
    (_edit("index", lambda i: i.update(manifests=[])), CorruptBundleError, "no targets"),
    (_edit("index", lambda i: i.pop("artifactType")), NotABundleError, "not of an aotpack bundle"),
    (_edit("index", lambda i: i["manifests"][0].update(mediaType="x")), CorruptBundleError, "manifests only"),
    (_add_manifest, CorruptBundleError, "different ones"),
    (_edit("top", lambda t: t.update(manifests=[])), NotABundleError, "exactly one"),
    (_edit("top", lambda t: t["manifests"].append(t["manifests"][0])), NotABundleError, "exactly one"),
    (_edit("top", lambda t: t["manifests"][0].update(artifactType="x")), NotABundleError, "of a x"),
    (_edit("top", lambda t: t["manifests"][0].update(mediaType="x")), NotABundleError, "not of an aotpack"),
]


@pytest.mark.parametrize(("change", "kind", "message"), HOSTILE_DOCUMENTS)
def test_a_hostile_document(tiny: Path, change: Callable[[Documents], object], kind: type[BundleError], message: str) -> None:
    documents = Documents(tiny)
    change(documents)
    tiny.write_bytes(pack(documents.files()))
    with pytest.raises(kind, match=message):
        open_and_use(tiny)


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="needs skopeo")
def test_skopeo_copies_bundles_without_changing_their_digest(tiny: Path) -> None:
    with Bundle.open(tiny) as bundle:
        digest = bundle.digest
    copied = tiny.parent / "copied"
    for kind in ("oci", "oci-archive"):
        command = ["skopeo", "--insecure-policy", "copy", "-q", "--all", "--preserve-digests"]
        subprocess.run([*command, f"oci-archive:{tiny}", f"{kind}:{copied}-{kind}"], check=True)
        with Bundle.open(f"{copied}-{kind}") as bundle:
            assert bundle.digest == digest
            use(bundle)


def test_a_layout_that_skopeo_copied_lost_its_artifact_type(tiny: Path) -> None:
    documents = Documents(tiny)
    documents.top["manifests"][0].pop("artifactType")
    tiny.write_bytes(pack(documents.files()))
    open_and_use(tiny)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("size", 1, "bytes, expected 1"),
        ("size", 2**62, "bytes, expected"),
        ("digest", "sha256:" + "0" * 64, "missing"),
        ("digest", "sha256:../../etc/passwd", "digest"),
        ("digest", "sha512:" + "0" * 64, "digest"),
    ],
)
def test_a_descriptor_that_lies(tiny: Path, field: str, value: object, message: str) -> None:
    files = members(tiny)
    top = json.loads(files["index.json"])
    top["manifests"][0][field] = value
    tiny.write_bytes(pack({**files, "index.json": json.dumps(top).encode()}))
    with pytest.raises(CorruptBundleError, match=message):
        Bundle.open(tiny)


def test_a_digest_with_a_newline_names_no_file(tiny: Path) -> None:
    with open_layout(tiny) as layout, pytest.raises(CorruptBundleError, match="Not a sha256 digest"):
        layout.read(Descriptor("x", "sha256:" + "0" * 64 + "\n", 1))


# ---------------------------------------------------------------- hostile blobs


def test_compression_is_deterministic_and_exact() -> None:
    for raw in (b"", b"x", bytes(1 << 20), random.Random(1).randbytes(100_000)):
        data = compression.compress(raw)
        assert data == compression.compress(raw)
        assert compression.decompress(data, len(raw)) == raw
        assert compression.decompress(memoryview(data), len(raw)) == raw


_SKIPPED = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
"""A frame that decompressors skip."""


@pytest.mark.parametrize(
    ("data", "raw_size"),
    [
        (compression.compress(b"abc"), 2),
        (compression.compress(b"abc"), 4),
        (compression.compress(b"abc"), -1),
        (compression.compress(b"abc"), 2**31 + 1),
        (compression.compress(b"abc"), 2**31),
        (compression.compress(b"abc") + b"x", 3),
        (compression.compress(b"abc") * 2, 3),
        (compression.compress(b"") + compression.compress(b"abc"), 0),
        (compression.compress(b"") + b"x", 0),
        (compression.compress(b"")[:-1], 0),
        (_SKIPPED + compression.compress(b"abc"), 3),
        (compression.compress(b"abc") + _SKIPPED, 3),
        (_SKIPPED, 0),
        (_SKIPPED, 4),
        (compression.compress(b"abc")[:-1], 3),
        (b"", 0),
        (b"abc", 3),
        (b"\x28\xb5\x2f\xfd\x00\x58\x19\x00\x00abc", 3),  # a frame that does not tell its size
        (b"\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little") + bytes(9), 3),  # one that lies about it
    ],
)
def test_hostile_compression(data: bytes, raw_size: int) -> None:
    with pytest.raises(CorruptBundleError):
        compression.decompress(data, raw_size)


def test_a_short_blob_holds_no_long_document() -> None:
    """40 KB took 966 MiB and two seconds: a graph of a billion blanks."""
    raw = b" " * (compression.MAX_SMALL_DOCUMENT + 1)
    data = compression.compress(raw)
    with pytest.raises(CorruptBundleError, match="the limit is"):
        compression.decompress_document(data, len(raw))
    assert compression.decompress(data, len(raw)) == raw  # code may have that size
    text = random.Random(1).randbytes(1 << 20).hex().encode()
    assert compression.decompress_document(compression.compress(text), len(text)) == text


@pytest.mark.parametrize("value", [None, "", "-1", "1e3", "0x10", " 5", "٣", "9" * 30, "1"])
def test_the_raw_size_of_a_graph(tiny: Path, value: str | None) -> None:
    with Bundle.open(tiny) as bundle:
        forward = bundle.program.methods["infer"].forward
        notes = {} if value is None else {media_types.ANNOTATION_RAW_SIZE: value}
        with pytest.raises(CorruptBundleError):
            bundle.graph(Descriptor(forward.media_type, forward.digest, forward.size, notes))


def _f32(start: int, stop: int, shape: list[int] | None = None) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [(stop - start) // 4] if shape is None else shape, "data_offsets": [start, stop]}


HOSTILE_SAFETENSORS = [
    b"",
    b"\0" * 7,
    safetensors_blob({}, length=2**63),
    safetensors_blob({}, length=100),
    safetensors_blob({}, length=0),
    safetensors_blob({}, b"x"),  # data that no tensor covers
    safetensors_blob(b" {}"),
    safetensors_blob(b"[]"),
    safetensors_blob(b"{"),
    safetensors_blob(b"{" + b'"a":{' * 20_000),
    safetensors_blob(b'{"\xff":1}'),
    safetensors_blob({"a": 1}),
    safetensors_blob({"a": {"dtype": "F32"}}),
    safetensors_blob({"a": dict(_f32(0, 4), extra=1)}, bytes(4)),
    safetensors_blob({"a": dict(_f32(0, 4), dtype="F33")}, bytes(4)),
    safetensors_blob({"a": dict(_f32(0, 4), dtype=["F32"])}, bytes(4)),
    safetensors_blob({"a": _f32(0, 4, [-1])}, bytes(4)),
    safetensors_blob({"a": _f32(0, 4, [True])}, bytes(4)),
    safetensors_blob({"a": _f32(0, 4, [1.0])}, bytes(4)),  # type: ignore[list-item]
    safetensors_blob({"a": _f32(0, 4, [2])}, bytes(4)),
    safetensors_blob({"a": _f32(0, 4, [2**62, 4])}, bytes(4)),
    safetensors_blob({"a": _f32(0, 4, [2**63])}, bytes(4)),
    safetensors_blob({"a": _f32(0, 4, [1] * 65)}, bytes(4)),
    safetensors_blob({"a": _f32(0, 8)}, bytes(4)),  # beyond the end
    safetensors_blob({"a": _f32(4, 8)}, bytes(8)),  # a hole before
    safetensors_blob({"a": _f32(0, 4), "b": _f32(8, 12)}, bytes(12)),  # a hole between
    safetensors_blob({"a": _f32(0, 8), "b": _f32(4, 12)}, bytes(12)),  # an overlap
    safetensors_blob({"a": _f32(0, 4), "b": _f32(0, 4)}, bytes(4)),  # twice the same
    safetensors_blob({"a": _f32(8, 4, [0])}, bytes(8)),  # backwards
    safetensors_blob({"a": dict(_f32(0, 4), data_offsets=[0])}, bytes(4)),
    safetensors_blob({"a": dict(_f32(0, 4), data_offsets=[0, 4, 4])}, bytes(4)),
    safetensors_blob(json.dumps({"a": _f32(0, 4)})[:-1].encode() + b',"a":' + json.dumps(_f32(0, 4)).encode() + b"}"),
    safetensors_blob(b'{"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}}', bytes(4)),
]


@pytest.mark.parametrize("data", HOSTILE_SAFETENSORS)
def test_hostile_safetensors(data: bytes) -> None:
    with pytest.raises(CorruptBundleError):
        read_header(memoryview(data), "blob")


def test_misaligned_data_and_repeated_names(tmp_path: Path) -> None:
    odd = safetensors_blob(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   ', bytes(4))
    assert len(odd) % 4
    layout = tmp_path / "m"
    write_tiny(layout, layout="directory")
    (layout / "blobs/sha256" / digest_of(odd)[7:]).write_bytes(odd)
    shard = Descriptor(media_types.WEIGHTS, digest_of(odd), len(odd))
    view = View("a", "float32", [1], [1])
    with open_layout(layout) as opened:
        with pytest.raises(CorruptBundleError, match="not a multiple of 4"):
            WeightMap(opened, [shard]).tensor(view)
        with pytest.raises(CorruptBundleError, match="two weight blobs"):
            WeightMap(opened, [shard, shard]).tensor(view)


# ---------------------------------------------------------------- mutations


def _mutate_bytes(data: bytes, generator: random.Random) -> bytes:
    position = generator.randrange(len(data))
    kind = generator.randrange(6)
    if kind == 0:
        return data[:position] + bytes([data[position] ^ (1 << generator.randrange(8))]) + data[position + 1 :]
    if kind == 1:
        return data[:position]
    if kind == 2:
        return data[:position] + generator.randbytes(generator.randrange(1, 600)) + data[position:]
    if kind == 3:
        return data[:position] + data[position + generator.randrange(1, 600) :]
    start = position - position % BLOCK
    if kind == 4:
        return data[:start] + data[start : start + BLOCK] + data[start:]
    return data[:start] + _resum(generator.randbytes(8) + data[start + 8 : start + BLOCK]) + data[start + BLOCK :]


JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**62,
    2**70,
    1.5,
    "",
    "x",
    "../..",
    "sha256:" + "0" * 64,
    [],
    {},
    [[]],
    [1] * 70,
]


def _mutate_json(node: Any, generator: random.Random) -> None:
    """Replace, remove or repeat one value somewhere below ``node``."""
    slots: list[tuple[Any, Any]] = []
    pending = [node]
    while pending:
        current = pending.pop()
        keys = current.keys() if isinstance(current, dict) else range(len(current))
        slots += [(current, key) for key in keys]
        pending += [current[key] for key in keys if isinstance(current[key], dict | list)]
    holder, key = generator.choice(slots)
    kind = generator.randrange(4)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.append(holder[key])
    elif kind == 2:
        other, other_key = generator.choice(slots)
        holder[key] = json.loads(json.dumps(other[other_key]))
    else:
        holder[key] = generator.choice(JUNK)


def _mutate_weights(data: bytes, generator: random.Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    _mutate_json(header, generator)
    return safetensors_blob(header, data[8 + length :])


def _mutate_graph(generator: random.Random) -> bytes:
    """A whole zstd frame of a mutated graph, its size wrong more often than not."""
    return compression.compress(_mutate_bytes(encode(tiny_graph()), generator))


def _mutants(original: Path, count: int) -> Any:
    generator = random.Random(20240)
    data = original.read_bytes()
    for number in range(count):
        if number % 3 == 0:
            yield _mutate_bytes(data, generator)
            continue
        documents = Documents(original)
        if number % 3 == 1:
            _mutate_json(generator.choice(list(documents.documents().values())), generator)
        elif generator.random() < 0.5:
            documents.replace_blob(media_types.WEIGHTS, lambda blob: _mutate_weights(blob, generator))
        else:
            documents.replace_blob(media_types.GRAPH, lambda _: _mutate_graph(generator))
        yield pack(documents.files())


def test_mutated_bundles_end_in_one_kind_of_error(tmp_path: Path) -> None:
    original, mutant = tmp_path / "original", tmp_path / "mutant"
    extra = torch.ones(3, dtype=torch.complex128)
    write_tiny(
        original,
        tensors=[("c", extra)],
        state=[StateEntry("c", "buffer", "complex128", [3], [1], "c")],
        name="mutate me",
    )
    open_and_use(original)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for data in _mutants(original, 2000):
        mutant.write_bytes(data)
        try:
            open_and_use(mutant)
        except BundleError:
            refused += 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert refused > 1000
    assert grown < 64 << 10, f"peak memory grew by {grown} KiB"

"""The archive: what is written is read back bit for bit, and what is hostile ends in one kind of error."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, get_args

import pytest
import safetensors
import torch
from support.archive import (
    PORTABLE,
    Documents,
    Edit,
    digest_of,
    members,
    pack,
    safetensors_blob,
    tiny_graph,
    tiny_program,
    write_tiny,
)

from aotpack.bundle import BlobStore, TargetEntry, write_bundle
from aotpack.weights import write_weights
from aotpack_loader.archive import cache, compression
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.layout import open_layout
from aotpack_loader.archive.weights import View, WeightMap, read_header
from aotpack_loader.errors import (
    AotpackError,
    BuildError,
    BundleError,
    BundleNotFoundError,
    CorruptBundleError,
    NotABundleError,
    UnsupportedVersionError,
)
from aotpack_loader.format import media_types
from aotpack_loader.format.codec import encode
from aotpack_loader.format.schema import Descriptor, DType, Platform, StateEntry, Target

DTYPES: tuple[DType, ...] = get_args(DType)
BLOCK = 512


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.aotpack"
    write_tiny(path)
    return path


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AOTPACK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def use(bundle: Bundle) -> None:
    """Touch everything a loader would."""
    bundle.verify()
    for method in bundle.program.methods.values():
        bundle.graph(method.forward)
    weights = bundle.weights()
    for entry in bundle.program.state:
        weights.tensor(entry)


def open_and_use(path: Path) -> None:
    with Bundle.open(path) as bundle:
        use(bundle)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().untyped_storage().tolist())[: tensor.numel() * tensor.element_size()]


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize("layout", ["file", "directory"])
def test_round_trip(tmp_path: Path, layout: Any) -> None:
    path = tmp_path / "m.aotpack"
    digest = write_tiny(path, layout=layout)
    with Bundle.open(path) as bundle:
        assert bundle.path == str(path)
        assert bundle.digest == digest
        assert bundle.targets == {"portable": PORTABLE}
        assert bundle.manifests["portable"].platform is None
        assert bundle.graph(bundle.program.methods["infer"].forward) == tiny_graph()
        assert [item.media_type for item in bundle.descriptors()] == [
            media_types.OCI_INDEX,
            media_types.OCI_MANIFEST,
            media_types.PROGRAM,
            media_types.TARGET,
            media_types.GRAPH,
            media_types.WEIGHTS,
        ]
        bundle.verify()
        scale = bundle.weights().tensor(bundle.program.state[0])
    assert scale.tolist() == [0.0, 1.0, 2.0, 3.0]  # after close: the mapping lives as long as the tensor


def test_equal_input_gives_equal_bytes_and_both_layouts_one_digest(tmp_path: Path) -> None:
    digests = [write_tiny(tmp_path / name) for name in ("a", "b")] + [write_tiny(f"{tmp_path}/c/")]
    assert len(set(digests)) == 1
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "c").is_dir()
    unpacked = {str(file.relative_to(tmp_path / "c")): file.read_bytes() for file in (tmp_path / "c").rglob("*.*")}
    assert unpacked["index.json"] == members(tmp_path / "a")["index.json"]


def test_tar_is_plain_sorted_and_without_time_or_owner(tiny: Path) -> None:
    with tarfile.open(tiny) as archive:
        entries = archive.getmembers()
    assert [entry.name for entry in entries] == sorted(entry.name for entry in entries)
    assert {(e.mode, e.uid, e.gid, e.mtime, e.uname, e.gname, e.type) for e in entries} == {
        (0o644, 0, 0, 0, "", "", tarfile.REGTYPE)
    }
    # and a foreign writer's plain ustar is read as well
    (tiny.parent / "foreign").write_bytes(pack(members(tiny)))
    open_and_use(tiny.parent / "foreign")


def test_targets_share_blobs_and_keep_their_platform(tmp_path: Path) -> None:
    path = tmp_path / "m.aotpack"
    platform = Platform("amd64", "linux", "v3")
    with BlobStore(path) as store:
        weights = write_weights([("scale", torch.arange(4.0))], store)
        graph = store.add_compressed(encode(tiny_graph()), media_types.GRAPH)
        again = store.add_compressed(encode(tiny_graph()), media_types.GRAPH)
        assert graph == again
        layers = [graph, *weights, graph]
        entries = [
            TargetEntry(PORTABLE, None, layers),
            TargetEntry(Target("other", "portable", "cpu"), platform, layers),
        ]
        write_bundle(path, store, tiny_program(graph, weights), entries)
    with Bundle.open(path) as bundle:
        assert list(bundle.targets) == ["portable", "other"]
        assert bundle.manifests["other"].platform == platform
        assert len(bundle.descriptors()) == 8
        assert len(members(path)) == 8 + 2


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("layout", ["file", "directory"])
def test_every_dtype(tmp_path: Path, layout: Any) -> None:
    generator = random.Random(0)
    tensors, state = [], []
    for dtype in DTYPES:
        item = getattr(torch, dtype).itemsize
        data = bytearray(generator.choices(range(2 if dtype == "bool" else 256), k=6 * item))
        for name, tensor in (
            (dtype, torch.frombuffer(data, dtype=getattr(torch, dtype)).reshape(2, 3)),
            (f"{dtype}_empty", torch.empty(3, 0, dtype=getattr(torch, dtype))),
            (f"{dtype}_scalar", torch.frombuffer(data[:item], dtype=getattr(torch, dtype)).reshape(())),
        ):
            tensors.append((name, tensor))
            stride = list(tensor.stride())
            state.append(StateEntry(name, "buffer", dtype, list(tensor.shape), stride, name))
    write_tiny(tmp_path / "m", layout=layout, tensors=tensors, state=state)
    with Bundle.open(tmp_path / "m") as bundle:
        weights = bundle.weights()
        for name, expected in tensors:
            found = weights.tensor(next(entry for entry in bundle.program.state if entry.name == name))
            assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
            assert raw_bytes(found) == raw_bytes(expected)
            assert found.data_ptr() % 64 == 0


def test_the_safetensors_crate_reads_our_shards(tmp_path: Path) -> None:
    tensors = [(f"t{n}", torch.full((n,), float(n))) for n in range(40)] + [("ünïcödé", torch.ones(3, dtype=torch.bool))]
    with BlobStore(tmp_path / "m") as store:
        shards = write_weights(tensors, store, shard_bytes=500)
        assert len(shards) > 5
        found = {}
        for position, shard in enumerate(shards):
            path = tmp_path / str(position)
            with open(path, "wb") as file:
                store.copy(shard.digest, file)
            with safetensors.safe_open(path, "pt") as reader:
                found.update({name: reader.get_tensor(name) for name in reader.keys()})  # noqa: SIM118 - not a dict
            ours = read_header(memoryview(path.read_bytes()), "")
            assert all(stored.start % 64 == 0 for stored in ours.values())
            assert set(ours) == {name for name in found if not name.startswith(media_types.PADDING_PREFIX)} & set(ours)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors)


def test_writes_are_private_to_one_mapping(tiny: Path) -> None:
    before = tiny.read_bytes()
    with Bundle.open(tiny) as bundle:
        (entry,) = bundle.program.state
        weights = bundle.weights()
        first, second = weights.tensor(entry), weights.tensor(entry)
        first.add_(1)
        assert second.tolist() == [1, 2, 3, 4]  # one map: tied
        assert bundle.weights().tensor(entry).tolist() == [0, 1, 2, 3]  # another: not
        assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        assert first._base is None
        bundle.verify()  # and the file is still what it was
    assert tiny.read_bytes() == before


def test_views_of_one_storage(tiny: Path) -> None:
    with Bundle.open(tiny) as bundle:
        weights = bundle.weights()
        assert weights.tensor(View("scale", "float32", [2, 2], [1, 2])).tolist() == [[0, 2], [1, 3]]
        assert weights.tensor(View("scale", "float32", [3], [0], 3)).tolist() == [3, 3, 3]
        assert weights.tensor(View.contiguous("scale", "float32", [2, 1, 2])).tolist() == [[[0, 1]], [[2, 3]]]
        for shape in ([], [4], [2, 3], [2, 0, 5], [7, 1, 3, 2]):
            assert tuple(View.contiguous("scale", "float32", shape).stride) == torch.empty(shape).stride()
        assert weights.tensor(View("scale", "float32", [], [], 1)).item() == 1


@pytest.mark.parametrize(
    "view",
    [
        View("scale", "float32", [5], [1]),
        View("scale", "float32", [4], [1], 1),
        View("scale", "float32", [2], [4]),
        View("scale", "float32", [2**62, 2**62], [0, 0]),
        View("scale", "float32", [2**62], [2**62]),
        View("scale", "float32", [-1], [1]),
        View("scale", "float32", [2], [-1], 3),
        View("scale", "float32", [2], [1], -1),
        View("scale", "float32", [2, 2], [1]),
        View("scale", "float32", [1] * 65, [1] * 65),
        View("scale", "float32", [], [], 4),
        View("scale", "float64", [2], [1]),
        View("scale", "complex128", [1], [1]),
        View("nothing", "float32", [4], [1]),
        View(media_types.PADDING_PREFIX + "0", "uint8", [1], [1]),
    ],
)
def test_a_view_out_of_bounds_never_reaches_torch(tiny: Path, view: View) -> None:
    with Bundle.open(tiny) as bundle, pytest.raises(CorruptBundleError):
        bundle.weights().tensor(view)


def test_a_closed_bundle_says_so(tiny: Path) -> None:
    bundle = Bundle.open(tiny)
    bundle.close()
    bundle.close()
    with pytest.raises(BundleError, match="has been closed"):
        bundle.graph(bundle.program.methods["infer"].forward)


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize("layout", ["file", "directory"])
@pytest.mark.parametrize("step", range(6))
def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Any, step: int) -> None:
    out = tmp_path / "m"
    old = write_tiny(out, layout=layout, name="old")
    calls = 0
    copy, replace, rename = BlobStore.copy, os.replace, os.rename

    def interrupt_at_step(original: Callable[..., None]) -> Callable[..., None]:
        def wrapper(*args: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == step + 1:
                raise KeyboardInterrupt
            original(*args)

        return wrapper

    monkeypatch.setattr(BlobStore, "copy", interrupt_at_step(copy))
    monkeypatch.setattr(os, "replace", interrupt_at_step(replace))
    monkeypatch.setattr(os, "rename", interrupt_at_step(rename))
    with pytest.raises(KeyboardInterrupt):
        write_tiny(out, layout=layout, name="new")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["m"]
    with Bundle.open(out) as bundle:
        assert bundle.digest == old


def test_an_interrupted_swap_of_directories_restores_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "m"
    old = write_tiny(out, layout="directory", name="old")
    rename = os.rename

    def fail_to_publish(source: Path, target: Path) -> None:
        if "directory" in source.name:
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_to_publish)
    with pytest.raises(BuildError, match="No space left"):
        write_tiny(out, layout="directory", name="new")
    assert os.listdir(tmp_path) == ["m"]
    with Bundle.open(out) as bundle:
        assert bundle.digest == old


def test_a_bundle_directory_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    out = tmp_path / "m"
    out.mkdir()
    write_tiny(out, layout="directory", name="old")
    new = write_tiny(out, layout="directory", name="new")
    assert Bundle.open(out).digest == new
    (out / "notes.txt").write_text("mine")
    with pytest.raises(BuildError, match="holds no bundle"):
        write_tiny(out, layout="directory")
    with pytest.raises(BuildError, match="is a directory"):
        write_tiny(out)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BuildError, match="is not a directory"):
        write_tiny(f"{tmp_path}/file/")
    with pytest.raises(BuildError, match="There is no directory"):
        write_tiny(tmp_path / "missing" / "m")
    assert sorted(os.listdir(tmp_path)) == ["file", "m"]


def test_the_writer_refuses_what_it_cannot_keep(tmp_path: Path) -> None:
    stray = Descriptor(media_types.GRAPH, digest_of(b"stray"), 5)
    with BlobStore(tmp_path / "m") as store:
        with pytest.raises(BuildError, match="never added"):
            write_bundle(tmp_path / "m", store, tiny_program(stray, []), [TargetEntry(PORTABLE, None, [stray])])
        with pytest.raises(BuildError, match="at least one target"):
            write_bundle(tmp_path / "m", store, tiny_program(stray, []), [])
        for tensors, message in (
            ([("a", torch.ones(2)), ("a", torch.ones(2))], "Two tensors"),
            ([(media_types.PADDING_PREFIX, torch.ones(2))], "reserved"),
            ([("__metadata__", torch.ones(2))], "reserved"),
            ([("a", torch.ones(2, 3).t())], "not a contiguous"),
            ([("a", torch.ones(2, device="meta"))], "not a contiguous"),
            ([("a", torch.ones(2, dtype=torch.complex64).conj())], "resolve it"),
            ([("a", torch.ones(2).to(torch.float8_e8m0fnu))], "no element type"),
        ):
            with pytest.raises(BuildError, match=message):
                write_weights(tensors, store)
        source = tmp_path / "source"
        source.write_bytes(b"before")
        added = store.add_file(source, media_types.SELF_TEST)
        source.write_bytes(b"after!")
        with pytest.raises(BuildError, match="changed while"):
            write_bundle(tmp_path / "m", store, tiny_program(added, []), [TargetEntry(PORTABLE, None, [added])])
    assert os.listdir(tmp_path) == ["source"]


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
    (_add_manifest, CorruptBundleError, "two targets"),
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
    places: list[tuple[Any, Any]] = []
    pending = [node]
    while pending:
        current = pending.pop()
        keys = current.keys() if isinstance(current, dict) else range(len(current))
        places += [(current, key) for key in keys]
        pending += [current[key] for key in keys if isinstance(current[key], dict | list)]
    holder, key = generator.choice(places)
    kind = generator.randrange(4)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.append(holder[key])
    elif kind == 2:
        other, other_key = generator.choice(places)
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


# ---------------------------------------------------------------- the cache

RAW = b"native code"


def _extract(raw: bytes = RAW, produce: Callable[[], bytes] | None = None) -> Path:
    return cache.extract("sha256:" + "0" * 64, digest_of(raw), len(raw), produce or (lambda: raw), ".so")


def test_code_is_extracted_once(cache_dir: Path) -> None:
    path = _extract()
    assert path == cache_dir / "code" / "sha256" / (digest_of(RAW)[7:] + ".so")
    assert path.read_bytes() == RAW
    assert path.stat().st_mode & 0o777 == 0o500
    assert cache_dir.stat().st_mode & 0o777 == 0o700

    def never() -> bytes:
        raise AssertionError

    assert _extract(produce=never) == path


@pytest.mark.parametrize("content", [b"", b"native cod", b"evil code!!", RAW + b"x"])
def test_wrong_code_in_the_cache_is_replaced(cache_dir: Path, content: bytes) -> None:
    path = _extract()
    path.unlink()
    path.write_bytes(content)
    assert _extract().read_bytes() == RAW
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert _extract().read_bytes() == RAW
    assert not path.is_symlink()


def test_code_is_hashed_once_and_again_when_it_has_changed(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    real = hashlib.file_digest

    def file_digest(file: BinaryIO, kind: str) -> object:
        hashed.append(Path(f"/proc/self/fd/{file.fileno()}").read_bytes())
        return real(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", file_digest)
    monkeypatch.setattr(cache, "_SETTLED", 0)
    path = _extract()
    assert [_extract(), _extract(), hashed] == [path, path, [RAW]]
    status = path.stat()
    path.chmod(0o700)
    path.write_bytes(b"evil code!!")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert _extract().read_bytes() == RAW
    assert hashed == [RAW, b"evil code!!"]


def test_code_that_has_just_changed_is_hashed_again(cache_dir: Path) -> None:
    """Within a tick of the file system's clock a further change would not show."""
    path = _extract()
    _extract()
    assert os.listdir(path.parent) == [path.name]


def test_code_that_is_not_what_was_promised(cache_dir: Path) -> None:
    with pytest.raises(CorruptBundleError, match="does not match its digest"):
        _extract(produce=lambda: b"native c0de")
    with pytest.raises(KeyboardInterrupt):
        _extract(produce=_interrupt)
    assert os.listdir(cache_dir / "code" / "sha256") == []


def _interrupt() -> bytes:
    raise KeyboardInterrupt


@pytest.mark.parametrize("part", ["", "code", "code/sha256"])
def test_a_cache_that_others_may_write_to_is_refused(cache_dir: Path, part: str) -> None:
    _extract()
    (cache_dir / part).chmod(0o770)
    with pytest.raises(AotpackError, match="Other users may write"):
        _extract()


def test_a_cache_of_another_user_or_in_an_impossible_place(cache_dir: Path, monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    _extract()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(AotpackError, match="belongs to another user"):
        _extract()
    monkeypatch.setenv("AOTPACK_CACHE", str(tiny))
    with pytest.raises(AotpackError, match="cannot be used"):
        _extract()


def test_code_of_a_bundle(tmp_path: Path, cache_dir: Path, tiny: Path) -> None:
    with BlobStore(tmp_path / "m") as store:
        weights = write_weights([("scale", torch.arange(4.0))], store)
        graph = store.add_compressed(encode(tiny_graph()), media_types.GRAPH)
        code = store.add_compressed(RAW, media_types.CODE_AOTI)
        write_bundle(tmp_path / "m", store, tiny_program(graph, weights), [TargetEntry(PORTABLE, None, [graph, *weights, code])])
    with Bundle.open(tmp_path / "m") as bundle:
        assert bundle.code(code).read_bytes() == RAW
        assert bundle.code(code).suffix == ".so"
        notes = {media_types.ANNOTATION_RAW_SIZE: str(len(RAW))}
        for bad in (
            Descriptor(code.media_type, code.digest, code.size, notes),
            Descriptor(code.media_type, code.digest, code.size, notes | {media_types.ANNOTATION_RAW_DIGEST: "../x"}),
            Descriptor(code.media_type, code.digest, code.size, notes | {media_types.ANNOTATION_RAW_DIGEST: digest_of(b"")}),
            graph,
        ):
            with pytest.raises(CorruptBundleError):
                bundle.code(bad)


def test_concurrent_processes_extract_one_file(cache_dir: Path) -> None:
    program = (
        "import sys, hashlib\n"
        "from aotpack_loader.archive.cache import extract\n"
        "sys.stdin.read()\n"  # all start at once, when the pipe is closed
        "for number in range(100):\n"
        "    raw = b'%d' % number * 100_000\n"
        "    digest = 'sha256:' + hashlib.sha256(raw).hexdigest()\n"
        "    path = extract(digest, digest, len(raw), lambda: raw, '.so')\n"
        "    if path.read_bytes() != raw: sys.exit('half a file')\n"
    )
    reader, starter = os.pipe()
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdin=reader, stderr=subprocess.PIPE, pass_fds=[]) for _ in range(4)
    ]
    os.close(reader)
    time.sleep(0.5)  # for the interpreters to start: too short only makes the race milder
    os.close(starter)
    assert [process.communicate()[1].decode() for process in processes] == [""] * 4
    names = os.listdir(cache_dir / "code" / "sha256")
    assert len(names) == 100
    assert all(name.endswith(".so") for name in names)

"""The archive: what is written is read back bit for bit, and writing leaves nothing half done."""

from __future__ import annotations

import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import safetensors
import torch
from support.archive import (
    PORTABLE,
    digest_of,
    members,
    open_and_use,
    pack,
    tiny_graph,
    tiny_program,
    write_tiny,
)

from aotpack.writer.bundle import BlobStore, TargetEntry, write_bundle
from aotpack.writer.weights import write_weights
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.temporaries import PREFIX
from aotpack_loader.archive.weights import View, read_header
from aotpack_loader.errors import (
    BuildError,
    BundleError,
    CorruptBundleError,
)
from aotpack_loader.format import media_types
from aotpack_loader.format.codec import encode
from aotpack_loader.format.schema import Descriptor, DType, Platform, StateEntry, Target

DTYPES: tuple[DType, ...] = get_args(DType)


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
    """On a file system that cannot exchange two names, two renames replace a directory."""
    out = tmp_path / "m"
    old = write_tiny(out, layout="directory", name="old")
    rename = os.rename

    def fail_to_publish(source: Path, target: Path) -> None:
        if PREFIX in source.name and not out.exists():
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr("aotpack_loader.archive.exchange.exchange", lambda first, second: False)
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

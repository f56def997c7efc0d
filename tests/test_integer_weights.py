"""Weights of integers and truth values: hashed at every load, because code uses them as indices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.archive import members, pack, write_tiny
from torch import nn

import aotpack
from aotpack_loader import load
from aotpack_loader.archive import layout
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.weights import INTEGERS
from aotpack_loader.errors import CorruptBundleError
from aotpack_loader.format.schema import StateEntry
from aotpack_loader.opening import documents


class Gather(nn.Module):
    """A parameter, rows of which are chosen by a buffer of indices and one of truth values."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.arange(32.0).reshape(8, 4))
        self.register_buffer("rows", torch.tensor([1, 5, 2]))
        self.register_buffer("kept", torch.tensor([True, False, True, True]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.table[self.rows] * self.kept) @ x + torch.tensor([0, 3, 1])  # a constant of the graph


@pytest.fixture(scope="module", params=["file", "directory"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("built") / "m"
    aotpack.build(Gather(), (torch.ones(4),), out=path, targets=["portable"], layout=request.param)
    return path


def blob_file(path: Path, blob: int) -> tuple[Path, int]:
    """The file that holds a weights blob, and where the blob begins in it."""
    with Bundle.open(path) as bundle:
        descriptor = bundle.program.weights[blob]
        name = "blobs/sha256/" + descriptor.digest[7:]
        return (path / name, 0) if path.is_dir() else (path, bundle.entries()[name][0])


def flip(path: Path, blob: int, name: str) -> None:
    """Change the first byte of a stored tensor."""
    file, start = blob_file(path, blob)
    with Bundle.open(path) as bundle:
        position = start + bundle.weights().stored(name).start
    with open(file, "r+b") as handle:
        handle.seek(position)
        byte = handle.read(1)[0]
        handle.seek(position)
        handle.write(bytes([byte ^ 1]))


def copy(built: Path, out: Path) -> Path:
    if built.is_file():
        out.write_bytes(built.read_bytes())
        return out
    for file in built.rglob("*"):
        if file.is_file():
            target = out / file.relative_to(built)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    return out


def test_integers_have_a_blob_of_their_own(built: Path) -> None:
    with Bundle.open(built) as bundle:
        assert len(bundle.program.weights) == 2
        program, weights = bundle.program, bundle.weights()
        assert {entry.name for entry in program.state if entry.dtype in INTEGERS} == {"rows", "kept"}
        holders = {name: weights._blob_of[name] for name in weights.names()}
    floats, integers = program.weights
    assert [name for name, holder in holders.items() if holder == floats] == ["table"]
    assert {"rows", "kept"} < {name for name, holder in holders.items() if holder == integers}  # and the constant


@pytest.mark.parametrize("name", ["rows", "kept", "constant"])
def test_a_changed_integer_is_refused_before_a_target_is_chosen(
    built: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(built, tmp_path / "m")
    with Bundle.open(path) as bundle:
        digest = bundle.digest
        constants = set(bundle.weights().names()) - {entry.storage for entry in bundle.program.state}
    load(path, trust=digest)
    flip(path, 1, constants.pop() if name == "constant" else name)
    monkeypatch.setattr(documents, "select", lambda *_: pytest.fail("a target was chosen"))
    for options in ({"trust": digest}, {"digest": digest}, {"trust": "all"}, {}):
        with pytest.raises(CorruptBundleError, match="its content has digest"):
            load(path, **options)  # type: ignore[arg-type]


def test_floats_are_not_read(built: Path, tmp_path: Path) -> None:
    """What the default leaves out, and ``verify="full"`` does not."""
    path = copy(built, tmp_path / "m")
    flip(path, 0, "table")
    load(path)
    with pytest.raises(CorruptBundleError, match="digest"):
        load(path, verify="full")


def test_a_change_after_the_load_does_not_reach_the_tensor(built: Path, tmp_path: Path) -> None:
    """Integers are a copy of the hashed bytes. Floats are a mapping of the file."""
    path = copy(built, tmp_path / "m")
    model = load(path)
    flip(path, 1, "rows")
    flip(path, 0, "table")
    assert model.get_buffer("rows").tolist() == [1, 5, 2]
    assert model.get_parameter("table")[0, 0].item() != 0.0


def test_integers_are_writable_and_private(built: Path) -> None:
    first, second = load(built), load(built)
    first.get_buffer("rows").fill_(7)
    assert second.get_buffer("rows").tolist() == [1, 5, 2]


def mixed(path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bundle of another writer, with floats and integers in one blob."""
    from support import archive

    from aotpack.writer import weights

    monkeypatch.setattr(weights, "INTEGERS", frozenset())
    tensors = [
        ("a", torch.arange(5)),
        ("b", torch.rand(37)),
        ("c", torch.arange(21).to(torch.uint8)),
        ("d", torch.empty(0, dtype=torch.int32)),
    ]
    state = [StateEntry(n, "buffer", str(t.dtype)[6:], [*t.shape], [1], n) for n, t in tensors]  # type: ignore[arg-type]
    archive.write_tiny(path, tensors=tensors, state=state)
    monkeypatch.setattr(layout, "_CHUNK", chunk)
    return tensors


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
def test_a_blob_of_floats_and_integers(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = mixed(tmp_path / "m", chunk, monkeypatch)
    with Bundle.open(tmp_path / "m") as bundle:
        assert len(bundle.program.weights) == 1
        weights = bundle.weights()
        for entry in bundle.program.state[1:]:
            assert torch.equal(weights.tensor(entry), dict(tensors)[entry.name])
            assert weights.tensor(entry).data_ptr() % 64 == 0
    flip(tmp_path / "m", 0, "b")  # a float of the same blob
    with pytest.raises(CorruptBundleError, match="its content has digest"):
        load(tmp_path / "m")


def test_a_header_that_moves_an_integer_to_another_blob_is_refused(tmp_path: Path) -> None:
    """Which blob holds a tensor is in headers, which no digest covers before a blob is hashed."""
    path = tmp_path / "m"
    state = [StateEntry("i", "buffer", "int64", [4], [1], "i")]
    write_tiny(path, tensors=[("f", torch.zeros(8)), ("i", torch.arange(4))], state=state)
    files = members(path)
    with Bundle.open(path) as bundle:
        floats, integers = ("blobs/sha256/" + blob.digest[7:] for blob in bundle.program.weights)
    files[floats] = files[floats].replace(b'"f":{"dtype":"F32","shape":[8]', b'"i":{"dtype":"I64","shape":[4]')
    path.write_bytes(pack(files))
    with pytest.raises(CorruptBundleError, match="two weight blobs hold it"):
        load(path)
    files[integers] = files[integers].replace(b'"i":', b'"j":')
    path.write_bytes(pack(files))
    with pytest.raises(CorruptBundleError, match="its content has digest"):
        load(path)

"""spec/native.md is true: a program in C runs compiled code of a bundle, forward and backward, with eager's values.

The program (tests/native/steps.c) has libtorch's C interface and no header of torch. What a reader in C takes
from the documents of a bundle is read here with nothing of the loader but expressions.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard
from safetensors.torch import load_file
from torch import nn

import aotpack
from aotpack_loader.format import expressions
from devtools.spec import replay

VECTOR = Path(__file__).parent.parent / "spec/vectors/v1/valid/compiled_step"
SOURCE = Path(__file__).parent / "native/steps.c"
LIBRARIES = Path(torch.__file__).parent / "lib"


class Pooled(nn.Module):
    """Everything that a call from C meets: an integer, a draw, a write to a buffer, saved values."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.dropout = nn.Dropout(0.5)
        self.second = nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, label: torch.Tensor, times: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        scores = self.second(self.dropout(torch.relu(self.first(x.sum(0))))) * times
        return nn.functional.cross_entropy(scores, label), scores


@dataclass
class Reader:
    """The documents of a packed bundle, and the script of a call that ``steps`` is to make."""

    path: Path
    cache: Path
    lines: list[str] = field(default_factory=list)
    values: int = 0
    codes: int = 0

    def __post_init__(self) -> None:
        with tarfile.open(self.path) as archive:
            self.blobs = {Path(entry.name).name: (entry.offset_data, entry.size) for entry in archive}
            top = archive.extractfile("index.json")
            assert top is not None
            (bundle,) = json.load(top)["manifests"]
        manifests = [self.document(entry) for entry in self.document(bundle)["manifests"]]
        targets = [self.document(manifest["layers"][0]) for manifest in manifests]
        (self.target,) = [target for target in targets if target["kind"] == "aoti"]
        self.program = self.document(manifests[0]["config"])
        self.stored = {name: found for blob in self.program["weights"] for name, found in self.tensors(blob)}

    def bytes(self, descriptor: Any) -> bytes:
        offset, size = self.blobs[descriptor["digest"].removeprefix("sha256:")]
        assert size == descriptor["size"]  # D2
        data = self.path.read_bytes()[offset : offset + size]
        assert descriptor["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"  # D3
        return data

    def document(self, descriptor: Any) -> Any:
        return json.loads(self.bytes(descriptor))

    def tensors(self, descriptor: Any) -> list[tuple[str, int]]:
        """The name of each stored tensor of a blob, and where in the file it begins."""
        data = self.bytes(descriptor)
        header = int.from_bytes(data[:8], "little")
        start = self.blobs[descriptor["digest"].removeprefix("sha256:")][0] + 8 + header
        return [(name, start + item["data_offsets"][0]) for name, item in json.loads(data[8 : 8 + header]).items()]

    def extract(self, key: str) -> Path:
        """The library of the code called ``key``, in the cache."""
        code = self.target["executables"][key]["code"]
        raw = zstandard.ZstdDecompressor().decompress(self.bytes(code))
        digest = hashlib.sha256(raw).hexdigest()
        assert code["annotations"]["dev.aotpack.raw-digest"] == f"sha256:{digest}"  # D6
        library = self.cache / "code/sha256" / f"{digest}.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        library.touch(0o700)
        library.write_bytes(raw)
        return library

    def step(self, words: Sequence[Any], makes: int = 0) -> list[int]:
        """Add a line. Returns the numbers of the values that it makes."""
        self.lines.append(" ".join(map(str, words)))
        self.values += makes
        return list(range(self.values - makes, self.values))

    def tensor(self, dtype: str, path: Path, offset: int, shape: Sequence[int], stride: Sequence[int]) -> int:
        return self.step(["tensor", dtype, path, offset, len(shape), *shape, *stride], 1)[0]

    def state(self, name: str) -> int:
        (entry,) = [entry for entry in self.program["state"] if entry["name"] == name]
        element = {"float32": 4, "int64": 8}[entry["dtype"]]
        offset = self.stored[entry["storage"]] + element * entry.get("offset", 0)
        return self.tensor(entry["dtype"], self.path, offset, entry["shape"], entry["stride"])

    def given(self, tensor: torch.Tensor, name: str) -> int:
        path = self.cache / name
        path.write_bytes(tensor.numpy().tobytes())
        return self.tensor(str(tensor.dtype).removeprefix("torch."), path, 0, tensor.shape, tensor.stride())

    def code(self, key: str) -> int:
        self.step(["code", self.extract(key)])
        self.codes += 1
        return self.codes - 1

    def call(self, key: str, code: int, inputs: Sequence[int], sizes: dict[int, int], how: str = "run") -> list[int]:
        """Run code on the ``inputs`` of its graph (``sizes``: those that are integers). Returns the graph's outputs.

        In threads each gets copies of what the code may overwrite (X7).
        """
        executable = self.target["executables"][key]
        assert "fallbacks" not in executable
        passed: list[int | str] = []
        for position, item in enumerate(executable["inputs"]):
            if item["type"] == "size_carrier":
                passed += self.step(["carrier", sizes[item["index"]]], 1)
            else:
                copied = how == "threads" and position in executable.get("donated", ())
                passed.append(f"{inputs[item['index']]}{'*' * copied}")
        returned = max(executable["outputs"], default=-1) + 1
        made = self.step([how, code, returned, *passed], returned if how == "run" else 0)
        return [made[position] for position in executable["outputs"]] if made else []


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled as plain C."""
    program = tmp_path_factory.mktemp("steps") / "steps"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror"]
    link = [f"-L{LIBRARIES}", f"-Wl,-rpath,{LIBRARIES}", "-ltorch_cpu", "-lc10", "-lpthread", "-ldl"]
    subprocess.run(["cc", *flags, "-o", str(program), str(SOURCE), *link], check=True)
    return program


@pytest.fixture(scope="module")
def model() -> Pooled:
    torch.manual_seed(0)
    return Pooled()


@pytest.fixture(scope="module")
def bundle(model: Pooled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("native") / "pooled.aotpack"
    rows = torch.export.Dim("rows", max=64)
    args = torch.randn(5, 6, requires_grad=True), torch.tensor(1), 2
    shapes = {0: rows}, None, torch.export.Dim.DYNAMIC
    aotpack.build(model, args, out=path, targets=("cpu",), methods=("train",), rng="eager", dynamic_shapes=shapes)
    return path


@pytest.fixture
def reader(bundle: Path, tmp_path: Path) -> Reader:
    return Reader(bundle, tmp_path)


def written(reader: Reader, number: int, like: torch.Tensor) -> torch.Tensor:
    """What the program has written to a file."""
    data = bytearray((reader.cache / f"written{number}").read_bytes())
    return torch.frombuffer(data, dtype=like.dtype).view(like.shape)


def run(steps: Path, reader: Reader) -> list[list[str]]:
    """What the program prints, in words."""
    script = reader.cache / "script"
    script.write_text("".join(f"{line}\n" for line in reader.lines))
    done = subprocess.run([steps, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split(" ") for line in done.stdout.splitlines()]


@dataclass
class Step:
    """The call of the method ``train`` with eager's arguments: the values that its forward and backward make."""

    reader: Reader
    args: tuple[Any, ...]

    def __post_init__(self) -> None:
        self.method = self.reader.program["methods"]["train"]
        self.symbols: dict[str, int] = {}  # A2
        for leaf, arg in zip(self.method["leaves"], self.args, strict=True):
            sizes = zip(leaf["shape"], arg.shape, strict=True) if leaf["type"] == "tensor" else [(leaf["size"], arg)]
            self.symbols |= {size: found for size, found in sizes if isinstance(size, str)}
        self.primals = [
            self.reader.given(self.args[primal["leaf"]], f"argument{primal['leaf']}") if primal["type"] == "user_input"
            else self.reader.state(primal["name"])
            for primal in self.method["primals"]
        ]  # fmt: skip

    def size(self, dim: int | str) -> int:
        return dim if isinstance(dim, int) else expressions.evaluate(dim, self.symbols)

    def forward(self, how: str = "run") -> list[int]:
        sizes = map(self.size, self.method.get("sizes", ()))
        self.outputs = self.reader.call(
            "train.forward", self.reader.code("train.forward"), self.primals, dict(enumerate(sizes, len(self.primals))), how
        )
        return self.outputs

    def backward(self) -> list[int]:
        """The gradients for ones in all results, computed in several threads first."""
        saved, sizes = [], {}
        for index, item in enumerate(self.method["backward"]["saved"]):
            if item["type"] == "size":
                sizes[index] = self.size(item["expr"])
            saved.append({"primal": self.primals, "output": self.outputs}.get(item["type"], [-1])[item.get(item["type"], 0)])
        self.tangents = [
            self.reader.given(torch.ones([self.size(size) for size in tangent["shape"]]), f"ones{number}")
            for number, tangent in enumerate(self.method["backward"]["tangents"])
        ]
        code = self.reader.code("train.backward")
        self.reader.call("train.backward", code, [*saved, *self.tangents], sizes, "threads")
        return self.reader.call("train.backward", code, [*saved, *self.tangents], sizes)


def test_a_step_from_c_is_eagers(steps: Path, reader: Reader, model: Pooled) -> None:
    x, label, times = torch.randn(7, 6), torch.tensor(2), 3
    reader.step(["state", state := reader.given(torch.get_rng_state(), "state")])
    step = Step(reader, (x, label, times))
    outputs, gradients = step.forward(), step.backward()

    x.requires_grad_()
    results = model.train()(x, label, times)
    torch.autograd.backward(results, [torch.ones_like(result) for result in results])
    (mutation,) = step.method["mutations"]
    wanted = [(outputs[mutation["output"]], model.calls)]
    for result, eager in zip(step.method["results"], results, strict=True):
        wanted.append((outputs[result["output"]], eager.detach()))
    for primal, gradient in zip(step.method["primals"], step.method["backward"]["gradients"], strict=True):
        if gradient is not None:
            of = x if primal["type"] == "user_input" else model.get_parameter(primal["name"])
            wanted.append((gradients[gradient], of.grad))
    assert len(wanted) == 8
    for number, (value, _) in enumerate(wanted):
        reader.step(["write", value, reader.cache / f"written{number}"])
    reader.step(["release", *range(reader.values)])

    *printed, freed = run(steps, reader)
    for number, ((value, eager), words) in enumerate(zip(wanted, printed, strict=True)):
        strides = eager.stride() if value in outputs else words[-eager.dim() :]  # those of gradients are free
        assert words == ["value", *map(str, (value, *eager.shape, *strides))][: len(words)]
        torch.testing.assert_close(written(reader, number, eager), eager)
    assert freed == ["freed", str(len([state, *step.primals, *step.tangents]))]  # the code gave up every handle that it took


def test_a_refusal_is_a_status_and_a_message(steps: Path, reader: Reader) -> None:
    step = Step(reader, (torch.randn(7, 6), torch.tensor(3), 3))
    step.forward("fail")
    reader.step(["release", *range(reader.values)])
    refused, freed = run(steps, reader)
    assert refused[0] == "refused"
    assert "[aotpack check] gather=aten.gather.default: index 3 is out of bounds" in " ".join(refused)
    assert freed == ["freed", str(len(step.primals))]  # a run that failed took its inputs, too


def test_the_vector_of_compiled_code_passes(steps: Path, tmp_path: Path) -> None:
    """As a reader of the class *trainer* replays it."""
    (target,) = json.loads((VECTOR / replay.EXPECT).read_text())["targets"]
    if not replay.fits(VECTOR, target):
        pytest.skip("the vector's code is for other machines, or another torch")
    reader, tensors = Reader(VECTOR / replay.BUNDLE, tmp_path), load_file(VECTOR / replay.TENSORS)
    step = Step(reader, (tensors["call_0.memory.0"],))
    outputs, gradients = step.forward(), step.backward()
    results = [outputs[result["output"]] for result in step.method["results"]]
    made = [*results, *(gradients[gradient] for gradient in step.method["backward"]["gradients"] if gradient is not None)]
    for number, value in enumerate(made):
        reader.step(["write", value, reader.cache / f"written{number}"])
    run(steps, reader)
    wanted = [tensors[f"call_0.{name}"] for name in ("result.0", "result.1", "gradient.weight")]
    for number, (_, expected) in enumerate(zip(made, wanted, strict=True)):
        torch.testing.assert_close(written(reader, number, expected), expected)

"""``aotpack train`` and ``aotpack export-weights``: what they write, how a run goes on, and their errors."""

from __future__ import annotations

import io
import json
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from click.testing import CliRunner, Result
from rich.progress import Progress
from safetensors.torch import load_file, save_file
from torch import nn

import aotpack
import aotpack_loader
from aotpack.tools.cli import main, train
from aotpack.tools.cli.console import _Console
from aotpack.tools.training import events
from aotpack.tools.training.export import export_weights
from aotpack.tools.training.loop import State, factor_of
from aotpack_loader.errors import AotpackError
from aotpack_loader.optimizer.loss import loss_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.tied = nn.Linear(4, 8)
        self.tied.weight = self.first.weight
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        y = nn.functional.dropout(self.norm(self.first(x)).relu(), 0.2)
        logits = self.last(y) + self.tied(x).mean()
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits, labels)}


def built(path: Path, **options: Any) -> Path:
    torch.manual_seed(0)
    inputs = torch.randn(6, 4), torch.randint(3, (6,))
    aotpack.build(Net(), inputs, out=path, targets=("portable",), methods=("train",), **options)
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "net.aotpack"
    return built(path, optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    x = torch.randn(40, 4)
    save_file({"x": x, "labels": x[:, :3].argmax(1)}, tmp_path / "data.safetensors")
    return tmp_path / "data.safetensors"


def invoke(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def run(bundle: Path, data: object, out: Path, *words: object) -> Any:
    result = invoke("train", bundle, "--data", data, "-o", out, "--json", *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def weights(out: Path) -> bytes:
    return (out / "checkpoint" / "model-00001.safetensors").read_bytes()


def test_it_trains_as_a_loop_in_eager_does(bundle: Path, data: Path, tmp_path: Path) -> None:
    """The numbers are those of the same steps with torch.optim."""
    report = run(bundle, data, tmp_path / "run", "--epochs", 3, "--lr", 0.02, "--clip-grad-norm", 0.5)
    assert (report["steps"], report["resumed"], report["backend"]) == (18, 0, "portable")
    found = lines(tmp_path / "run")
    assert [line["step"] for line in found] == [*range(1, 19)]
    assert found[-1]["loss"] == report["loss"] < found[0]["loss"]
    assert {line["epoch"] for line in found} == {1, 2, 3}

    model = Net()
    model.load_state_dict(aotpack_loader.load(bundle).state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    tensors = load_file(data)
    torch.manual_seed(0)
    losses = []
    for epoch in range(3):
        seed = random.Random(f"0 {epoch}").getrandbits(63)
        order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
        for i in range(6):
            chosen = order[6 * i : 6 * i + 6]
            loss = model(tensors["x"][chosen], tensors["labels"][chosen])["loss"]
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
    assert [line["loss"] for line in found] == pytest.approx(losses, rel=1e-4)


def test_a_run_goes_on_from_its_checkpoint(bundle: Path, data: Path, tmp_path: Path) -> None:
    options = ["--checkpoint-every", 4]
    run(bundle, data, tmp_path / "whole", "--epochs", 4, *options)
    run(bundle, data, tmp_path / "parts", "--epochs", 1, *options)
    # What a killed process leaves: metrics of steps after the checkpoint, and a line that is cut off.
    with open(tmp_path / "parts" / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "loss": 99.0}\n{"step": 8, "lo')
    report = run(bundle, data, tmp_path / "parts", "--epochs", 4, *options)
    assert report["resumed"] == 6
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    kept = [[(line["step"], line["loss"]) for line in lines(tmp_path / name)] for name in ("whole", "parts")]
    assert kept[0] == kept[1]
    report = run(bundle, data, tmp_path / "parts", "--epochs", 4, *options)
    assert (report["resumed"], report["loss"]) == (24, None)


BATCHES = """
import random
import torch

CALLS = []

def batches(epoch):
    CALLS.append(epoch)
    order = torch.randperm(12)
    for i in range(12):
        x = torch.randn(6, 4) + order[i] / 12 + random.random()
        yield {"x": x, "labels": x[:, :3].argmax(1)} if i % 2 else (x, x[:, :3].argmax(1))

def endless():
    while True:
        yield torch.randn(6, 4), torch.zeros(6, dtype=torch.int64)

def wrong():
    yield 3

def none():
    return iter(())
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_batches.py").write_text(BATCHES)
    monkeypatch.chdir(tmp_path)
    yield "my_batches"
    sys.modules.pop("my_batches", None)


def test_batches_of_a_function(bundle: Path, module: str, tmp_path: Path) -> None:
    """A run that stops within an epoch goes on there: the function draws as it did before."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(bundle, f"{module}:batches", whole, "--epochs", 2)
    assert sys.modules[module].CALLS == [0, 1]

    class StopError(Exception):
        """As if the process were killed."""

    def stop(self: Any, state: State) -> None:
        if state.step == 17:
            raise StopError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.Line, "after", stop)
        words = ["train", bundle, "--data", f"{module}:batches", "-o", parts, "--epochs", 2, "--checkpoint-every", 5]
        assert isinstance(invoke(*words).exception, StopError)
    report = run(bundle, f"{module}:batches", parts, "--epochs", 2, "--checkpoint-every", 5)
    assert report["resumed"] == 15
    assert weights(parts) == weights(whole)
    assert [line["loss"] for line in lines(parts)] == [line["loss"] for line in lines(whole)]


def test_an_endless_function(bundle: Path, module: str, tmp_path: Path) -> None:
    words = ["--epochs", 2, "--steps-per-epoch", 5, "--schedule", "linear", "--warmup", 2, "--log-every", 2]
    report = run(bundle, f"{module}:endless", tmp_path / "run", *words)
    assert report["steps"] == 10
    found = lines(tmp_path / "run")
    assert [line["step"] for line in found] == [2, 4, 6, 8, 10]
    assert [line["lr"] for line in found] == pytest.approx([0.01, 0.01 * 7 / 8, 0.01 * 5 / 8, 0.01 * 3 / 8, 0.01 / 8])


def test_schedules() -> None:
    assert [factor_of("cosine", step, 10, 2) for step in (0, 1, 2, 6)] == pytest.approx([0.5, 1.0, 1.0, 0.5])
    assert [factor_of("linear", step, 10, 0) for step in (0, 5, 9)] == pytest.approx([1.0, 0.5, 0.1])
    assert [factor_of("constant", step, None, 4) for step in (0, 3, 4, 99)] == [0.25, 1.0, 1.0, 1.0]


def test_errors(bundle: Path, data: Path, module: str, tmp_path: Path) -> None:
    def message(*words: object, source: object = data, path: Path = bundle, out: str = "errors") -> str:
        result = invoke("train", path, "--data", source, "-o", tmp_path / out, *words)
        assert result.exit_code == 1, result.output
        return result.output

    without = built(tmp_path / "without.aotpack")
    assert "The bundle has no optimizer." in message(path=without)
    assert "no optimizer 'sgd'" in message("--optimizer", "sgd")
    assert "cannot be read" in message(source=tmp_path / "missing.safetensors")
    save_file({"x": torch.zeros(8, 4, dtype=torch.float64), "y": torch.zeros(8)}, tmp_path / "other.safetensors")
    found = message(source=tmp_path / "other.safetensors")
    assert all(text in found for text in ("x: is of float64", "y: is no tensor argument", "labels: is missing"))
    save_file({"x": torch.zeros(8, 4), "labels": torch.zeros(9, dtype=torch.int64)}, tmp_path / "uneven.safetensors")
    assert "no equal number of samples" in message(source=tmp_path / "uneven.safetensors")
    assert "40 samples, and a batch has 64" in message("--batch-size", 64)
    assert "expected FILE.safetensors or module:function" in message(source="nothing")
    assert "cannot be imported" in message(source="no_such_module:batches")
    assert "has no function 'other'" in message(source=f"{module}:other")
    assert "neither a tuple nor a dictionary" in message(source=f"{module}:wrong")
    assert "has no batch in epoch 1" in message(source=f"{module}:none")
    assert "needs the number of steps" in message("--schedule", "cosine", source=f"{module}:batches")
    assert "so --batch-size has no effect" in message("--batch-size", 3, source=f"{module}:batches")
    save_file({"x": torch.full((8, 4), torch.inf), "labels": torch.zeros(8, dtype=torch.int64)}, tmp_path / "inf.safetensors")
    assert "The loss is nan at step 1." in message(source=tmp_path / "inf.safetensors")
    run(bundle, data, tmp_path / "run")
    found = message("--seed", 4, "--lr", 0.5, out="run")
    assert "seed: is 4, the run in the folder has 0" in found
    assert "learning rates: is [0.5], the run in the folder has [0.01]" in found
    (tmp_path / "run" / "checkpoint" / "model-00001.safetensors").write_bytes(b"")
    assert "is damaged" in message(out="run")


def test_several_optimizers(data: Path, tmp_path: Path) -> None:
    made = {
        "body": lambda model: torch.optim.SGD(model.first.parameters(), lr=0.1),
        "head": lambda model: torch.optim.AdamW(model.last.parameters(), lr=0.1),
    }
    bundle = built(tmp_path / "two.aotpack", optimizer=made)
    result = invoke("train", bundle, "--data", data, "-o", tmp_path / "run")
    assert "several optimizers: body, head" in result.output
    run(bundle, data, tmp_path / "run", "--optimizer", "head")
    trained, before = load_file(tmp_path / "run" / "checkpoint" / "model-00001.safetensors"), aotpack_loader.load(bundle)
    assert torch.equal(trained["first.weight"], before.first.weight)
    assert not torch.equal(trained["last.weight"], before.last.weight)


class Named(NamedTuple):
    loss: torch.Tensor
    other: torch.Tensor


def test_which_result_is_the_loss() -> None:
    number, vector = torch.tensor(1.0, requires_grad=True), torch.zeros(3, requires_grad=True)
    count = torch.tensor(3)
    assert loss_of(number) is number
    assert loss_of((vector, [number], count)) is number
    assert loss_of({"a": torch.tensor(0.0, requires_grad=True), "loss": number}) is number
    assert loss_of(Named(number, vector.sum())) is number
    assert loss_of((number, torch.tensor(0.5))) is number  # a metric beside it
    constant = torch.tensor(1.0)
    for outputs in (vector, (number, vector.sum()), {"loss": vector}, constant, {"a": number, "loss": constant}, None):
        with pytest.raises(AotpackError, match="not clear which result is the loss"):
            loss_of(outputs)
    with pytest.raises(AotpackError) as error:
        loss_of({"a": number, "b": [vector.sum(), count]})
    assert [str(problem) for problem in error.value.problems] == ["a: float32[]", "b.0: float32[]", "b.1: int64[]"]


# ---------------------------------------------------------------- events


def parsed(data: bytes) -> list[dict[int, Any]]:
    """The fields of each record of an event file, after a look at its checksums."""
    found = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + length]
        assert struct.unpack("<I", data[8:12])[0] == events._masked(data[:8])
        assert struct.unpack("<I", data[12 + length : 16 + length])[0] == events._masked(body)
        found.append(fields(body))
        data = data[16 + length :]
    return found


def fields(data: bytes) -> dict[int, Any]:
    found: dict[int, Any] = {}

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if not data[at - 1] & 0x80:
                return value, at

    at = 0
    while at < len(data):
        key, at = varint(at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(at)
            found[number] = value
        elif kind == 2:
            length, at = varint(at)
            found.setdefault(number, []).append(data[at : at + length])
            at += length
        else:
            size = {1: 8, 5: 4}[kind]
            (found[number],) = struct.unpack("<d" if kind == 1 else "<f", data[at : at + size])
            at += size
    return found


def test_events_for_tensorboard(bundle: Path, data: Path, tmp_path: Path) -> None:
    assert events.crc32c(b"123456789") == 0xE3069283
    run(bundle, data, tmp_path / "run")
    (file,) = (tmp_path / "run").glob("events.out.tfevents.*")
    version, start, *steps = parsed(file.read_bytes())
    assert version[3] == [b"brain.Event:2"]
    assert start[2] == 1
    assert fields(start[7][0]) == {1: 1}
    assert [event[2] for event in steps] == [*range(1, 7)]
    found = {}
    for event, line in zip(steps, lines(tmp_path / "run"), strict=True):
        found = {fields(value)[1][0].decode(): fields(value)[2] for value in fields(event[5][0])[1]}
        assert found["loss"] == pytest.approx(line["loss"], rel=1e-6)
    assert found.keys() == {"loss", "lr", "steps_per_second", "memory"}


def test_tensorboard_reads_them(bundle: Path, data: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(bundle, data, tmp_path / "run")
    read = accumulator.EventAccumulator(str(tmp_path / "run")).Reload()
    assert [scalar.step for scalar in read.Scalars("loss")] == [*range(1, 7)]


# ---------------------------------------------------------------- what is shown


def test_progress_fits_a_terminal_and_is_plain_in_a_pipe(bundle: Path, data: Path, tmp_path: Path) -> None:
    state = State(123456, 1234567, 12, 100, 0.123456, 1.2345e-05, 1234.5, 123_456_789_012)
    for terminal in (True, False):
        stream = io.StringIO()
        console = _Console(file=stream, width=100, force_terminal=terminal, color_system=None)
        with train._shown(console) as line:
            assert isinstance(line._progress, Progress) is terminal
            line.begin(3, state.total, "portable")
            line.after(state)
        text = stream.getvalue()
        assert "goes on after step 3" in text
        assert "123456/1234567  loss 0.1235  lr 1.23e-05  1.23e+03/s  123 GB" in text
        assert ("\x1b" in text) is terminal
    result = invoke("train", bundle, "--data", data, "-o", tmp_path / "run", "--epochs", 2)
    assert "epoch 1/2  1/12  loss" in result.stderr
    assert result.stdout.startswith("steps       12\nloss        ")


# ---------------------------------------------------------------- weights


def test_weights_fit_the_original(bundle: Path, data: Path, tmp_path: Path) -> None:
    run(bundle, data, tmp_path / "run")
    for source in (bundle, tmp_path / "run" / "checkpoint"):
        result = invoke("export-weights", source, "-o", tmp_path / "w.safetensors", "--json")
        assert result.exit_code == 0, result.output
        model = aotpack_loader.load(bundle)
        if source != bundle:
            model.aotpack.load_checkpoint(source)
        expected = model.state_dict()
        report = json.loads(result.stdout)
        assert report == {
            "files": [str(tmp_path / "w.safetensors")],
            "tensors": len(expected),
            "size": sum(t.nbytes for t in expected.values()),
        }
        found = load_file(tmp_path / "w.safetensors")
        assert found.keys() == expected.keys() == Net().state_dict().keys()
        assert all(torch.equal(value, expected[name]) for name, value in found.items())
        Net().load_state_dict(found)
    assert "tensors, " in invoke("export-weights", bundle, "-o", tmp_path / "w.safetensors").output


def test_weights_in_several_files(bundle: Path, tmp_path: Path) -> None:
    report = export_weights(bundle, tmp_path / "w.safetensors", shard_bytes=150)
    assert len(report.files) > 3
    assert report.files[0].name.startswith("w-00001-of-0000")
    index = json.loads((tmp_path / "w.safetensors.index.json").read_text())
    found = {name: load_file(tmp_path / file)[name] for name, file in index["weight_map"].items()}
    expected = aotpack_loader.load(bundle).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    assert index["metadata"]["total_size"] == report.size
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in report.files)


def test_what_has_no_weights(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert invoke("export-weights", tmp_path / "folder", "-o", tmp_path / "w.safetensors").exit_code == 1
    assert "does not end in .safetensors" in invoke("export-weights", bundle, "-o", tmp_path / "w.pt").output
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]

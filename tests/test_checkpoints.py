"""Checkpoints: a run that goes on from one is the run that was not interrupted; what does not fit changes nothing."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from conftest import ROOT, FreshProcess
from safetensors.torch import load_file
from support.full_disk import small_folder
from torch import nn
from torch.optim import lr_scheduler

import aotpack
import aotpack_loader
from aotpack_loader.checkpoints import folder
from aotpack_loader.checkpoints.document import CheckpointDocument
from aotpack_loader.errors import CheckpointError
from aotpack_loader.format.codec import decode


class Net(nn.Module):
    """Dropout, buffers that calls write to, a tied weight, a parameter in channels-last, a buffer in no state dict."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)
        self.filter = nn.Parameter(torch.randn(2, 3, 2, 2).contiguous(memory_format=torch.channels_last))
        self.tied = nn.Linear(4, 6)
        self.tied.weight = self.first.weight
        self.register_buffer("count", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        y = nn.functional.dropout(self.norm(self.first(x)).relu(), 0.3)
        scale = self.filter.square().mean() + self.count
        return (self.last(y) * scale + self.tied(x).sum()).square().mean()


def of_two(model: nn.Module) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW([{"params": matrices}, {"params": others, "weight_decay": 0.0}], lr=0.01)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("bundle") / "net.aotpack"
    aotpack.build(Net(), (torch.randn(5, 4),), out=path, targets=("portable",), methods=("train",), optimizer=of_two)
    return path


def trained(model: Any, optimizer: Any, steps: int, scheduler: Any = None) -> float:
    loss = torch.zeros(())
    for _ in range(steps):
        loss = model(torch.randn(5, 4) + random.random() + numpy.random.standard_normal())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step(*([loss.item()] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
    return loss.item()


def everything(model: Any, *objects: Any) -> dict[str, Any]:
    """All that training changes, with copies of tensors."""
    found = {**dict(model.named_parameters()), **dict(model.named_buffers()), "generator": torch.get_rng_state()}
    found = {name: value.detach().clone() for name, value in found.items()}
    for i, one in enumerate(objects):
        found |= {f"{i}.{name}": value for name, value in flat(one.state_dict())}
    return found | {"python": random.getstate(), "numpy": repr(numpy.random.get_state())}


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from flat(item, f"{path}.{i}")
    else:
        yield path, value.clone() if isinstance(value, torch.Tensor) else value


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == other[name].dtype, name
            assert value.stride() == other[name].stride(), name
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "the bundle's": lambda model: model.aotpack.optimizer(lr=0.02),
    "AdamW": of_two,
    "Adam": lambda model: torch.optim.Adam(model.parameters(), amsgrad=True, foreach=False),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.02), fused=True),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True),
    "Adafactor": lambda model: torch.optim.Adafactor(model.parameters()),
    "Rprop": lambda model: torch.optim.Rprop(model.parameters()),
}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["here", "thread"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_goes_on_bit_for_bit(name: str, asynchronous: bool, bundle: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = aotpack_loader.load(bundle)
    optimizer = OPTIMIZERS[name](model)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    trained(model, optimizer, 3, scheduler)
    saving = model.aotpack.save_checkpoint(
        tmp_path / "c",
        optimizer=optimizer,
        scheduler=scheduler,
        step=3,
        extra={"note": [1, (2.0, None)]},
        asynchronous=asynchronous,
    )
    last = trained(model, optimizer, 4, scheduler)
    expected = everything(model, optimizer, scheduler)
    saving.wait()
    assert saving.done
    other = aotpack_loader.load(bundle, weights=False)
    optimizer = OPTIMIZERS[name](other)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    restored = other.aotpack.load_checkpoint(tmp_path / "c", optimizer=optimizer, scheduler=scheduler)
    assert restored == (3, {"note": [1, (2.0, None)]})
    assert trained(other, optimizer, 4, scheduler) == last
    assert_same(everything(other, optimizer, scheduler), expected)
    assert os.listdir(tmp_path) == ["c"]


def test_torch_and_a_bundle_read_each_others_state(bundle: Path, tmp_path: Path) -> None:
    model = aotpack_loader.load(bundle)
    optimizer = model.aotpack.optimizer()
    trained(model, optimizer, 2)
    model.aotpack.save_checkpoint(tmp_path / "c", optimizer=optimizer)
    eager = of_two(model)
    model.aotpack.load_checkpoint(tmp_path / "c", optimizer=eager)
    state = dict(flat(eager.state_dict()["state"]))
    assert_same(state, dict(flat(optimizer.state_dict()["state"])))
    assert any(".exp_avg_sq" in name for name in state)
    model.aotpack.save_checkpoint(tmp_path / "c", optimizer=eager)
    model.aotpack.load_checkpoint(tmp_path / "c", optimizer=model.aotpack.optimizer())


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4, 6]),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=10.0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1), lr_scheduler.MultiStepLR(o, [2, 3])], milestones=[4]
    ),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_go_on(name: str, bundle: Path, tmp_path: Path) -> None:
    model = aotpack_loader.load(bundle)
    optimizer = of_two(model)
    scheduler = SCHEDULERS[name](optimizer)
    trained(model, optimizer, 3, scheduler)
    model.aotpack.save_checkpoint(tmp_path / "c", optimizer=optimizer, scheduler=scheduler)
    last = trained(model, optimizer, 4, scheduler)
    expected = everything(model, optimizer, scheduler)
    other = of_two(model)
    following = SCHEDULERS[name](other)
    model.aotpack.load_checkpoint(tmp_path / "c", optimizer=other, scheduler=following)
    assert trained(model, other, 4, following) == last
    assert_same(everything(model, other, following), expected)


@pytest.mark.parametrize(
    ("name", "value"), [("last_epoch", '"3"'), ("last_epoch", "true"), ("last_epoch", "null"), ("base_lrs", '"ab"')]
)
def test_numbers_of_a_scheduler_of_another_kind_are_refused(name: str, value: str, bundle: Path, tmp_path: Path) -> None:
    model = aotpack_loader.load(bundle)
    optimizer = of_two(model)
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    model.aotpack.save_checkpoint(tmp_path / "c", scheduler=scheduler)
    document = json.loads((tmp_path / "c" / "checkpoint.json").read_text())
    document["schedulers"]["scheduler"]["state"][name] = json.loads(value)
    (tmp_path / "c" / "checkpoint.json").write_text(json.dumps(document))
    before = scheduler.state_dict()
    with pytest.raises(CheckpointError, match=f"values of other kinds than the checkpoint: {name}"):
        model.aotpack.load_checkpoint(tmp_path / "c", scheduler=scheduler)
    assert scheduler.state_dict() == before


def test_a_scaler_is_kept_beside_a_scheduler(bundle: Path, tmp_path: Path) -> None:
    model = aotpack_loader.load(bundle)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    model.aotpack.save_checkpoint(tmp_path / "c", scheduler={"scaler": scaler})
    other = torch.amp.GradScaler("cpu", init_scale=2.0)
    model.aotpack.load_checkpoint(tmp_path / "c", scheduler={"scaler": other})
    assert other.state_dict() == scaler.state_dict()


def test_several_optimizers(bundle: Path, tmp_path: Path) -> None:
    model = aotpack_loader.load(bundle)

    def made() -> dict[str, Any]:
        return {
            "first": torch.optim.SGD(model.first.parameters(), lr=0.1, momentum=0.9),
            "last": torch.optim.Adam(model.last.parameters()),
        }

    given = made()
    model(torch.randn(5, 4)).backward()
    for one in given.values():
        one.step()
    model.aotpack.save_checkpoint(tmp_path / "c", optimizer=given)
    other = made()
    model.aotpack.load_checkpoint(tmp_path / "c", optimizer=other)
    for name, one in given.items():
        assert_same(dict(flat(one.state_dict())), dict(flat(other[name].state_dict())))
    with pytest.raises(CheckpointError) as error:
        model.aotpack.load_checkpoint(tmp_path / "c", optimizer={"first": other["last"], "third": other["first"]})
    found = {problem.where: problem.message for problem in error.value.problems}
    assert found.keys() == {"first", "first.param_groups[0]", "third", "last"}


def test_state_of_other_types_stays(bundle: Path, tmp_path: Path) -> None:
    """State in float32 of parameters in bfloat16: ``torch.optim`` itself would convert it."""
    model = aotpack_loader.load(bundle).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.rand_like(parameter, dtype=torch.float32)
    model.aotpack.save_checkpoint(tmp_path / "c", optimizer=optimizer)
    other = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.aotpack.load_checkpoint(tmp_path / "c", optimizer=other)
    assert_same(dict(flat(other.state_dict())), dict(flat(optimizer.state_dict())))


def test_state_in_lists(bundle: Path, tmp_path: Path) -> None:
    """LBFGS keeps directions in lists of tensors, and takes a function."""

    def trained_by(optimizer: torch.optim.LBFGS) -> float:
        x = torch.randn(5, 4)

        def again() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(x)
            loss.backward()
            return loss

        return float(optimizer.step(again).detach())  # type: ignore[no-untyped-call]

    model = aotpack_loader.load(bundle)
    optimizer = torch.optim.LBFGS(model.last.parameters(), lr=1e-3, max_iter=4)
    trained_by(optimizer)
    model.aotpack.save_checkpoint(tmp_path / "c", optimizer=optimizer)
    last = trained_by(optimizer)
    expected = everything(model, optimizer)
    other = torch.optim.LBFGS(model.last.parameters())
    model.aotpack.load_checkpoint(tmp_path / "c", optimizer=other)
    assert trained_by(other) == last
    assert_same(everything(model, other), expected)


# ---------------------------------------------------------------- what is on disk


def test_files_are_plain_safetensors_in_shards(bundle: Path, tmp_path: Path) -> None:
    model = aotpack_loader.load(bundle)
    model.aotpack.save_checkpoint(tmp_path / "c", shard_bytes=100)
    files = sorted((tmp_path / "c").glob("*.safetensors"))
    assert len(files) > 3
    found = {name: value for file in files for name, value in load_file(file).items()}
    state = model.state_dict()
    assert found.keys() == (state.keys() | {"count"}) - {"tied.weight"}
    assert all(torch.equal(value, state[name]) for name, value in found.items() if name != "count")
    document = json.loads((tmp_path / "c" / "checkpoint.json").read_text())
    assert document["bundle"] == model.aotpack.digest
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.aotpack.load_checkpoint(tmp_path / "c")
    assert all(torch.equal(value, state[name]) for name, value in found.items() if name in model.state_dict())


def test_element_types(tmp_path: Path) -> None:
    dtypes = [torch.bool, torch.uint16, torch.int64, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.complex128]
    tensors = {str(d): torch.arange(5).to(torch.float32).to(d) for d in dtypes}
    tensors |= {
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
        "negative": torch.imag(torch.randn(3, dtype=torch.cfloat).conj()),
    }
    made = folder.write_tensors(tmp_path / "t.safetensors", tensors)
    data = memoryview((tmp_path / "t.safetensors").read_bytes())
    assert len(data) == made.size
    assert set(load_file(tmp_path / "t.safetensors")) == set(tensors)
    for name in ("torch.bool", "torch.uint16", "torch.bfloat16", "empty", "scalar", "negative"):
        assert torch.equal(load_file(tmp_path / "t.safetensors")[name], tensors[name].resolve_neg())


@pytest.fixture
def saved(bundle: Path, tmp_path: Path) -> tuple[Any, Path]:
    model = aotpack_loader.load(bundle)
    optimizer = model.aotpack.optimizer()
    trained(model, optimizer, 1)
    model.aotpack.save_checkpoint(tmp_path / "c", optimizer=optimizer, step=1)
    return model, tmp_path / "c"


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


def rewrite(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def twice(document: Path) -> None:
    found = json.loads(document.read_text())
    document.write_text(json.dumps({**found, "files": found["files"] * 2}))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit": lambda c: flip(c / "model-00001.safetensors"),
    "a bit of state": lambda c: flip(c / "values-00001.safetensors"),
    "shorter": lambda c: os.truncate(c / "model-00001.safetensors", 100),
    "empty": lambda c: os.truncate(c / "model-00001.safetensors", 0),
    "no file": lambda c: (c / "model-00001.safetensors").unlink(),
    "no document": lambda c: (c / "checkpoint.json").unlink(),
    "no JSON": lambda c: (c / "checkpoint.json").write_text("{"),
    "another version": lambda c: rewrite(c / "checkpoint.json", '"version":1', '"version":2'),
    "a path": lambda c: rewrite(c / "checkpoint.json", "model-00001", "../model-00001"),
    "another shape": lambda c: rewrite(c / "checkpoint.json", '"shape":[6,4]', '"shape":[4,6]'),
    "another type": lambda c: rewrite(c / "checkpoint.json", '"dtype":"float32"', '"dtype":"int32"'),
    "another name": lambda c: rewrite(c / "checkpoint.json", '"first.weight":{', '"first.weights":{'),
    "a file twice": lambda c: twice(c / "checkpoint.json"),
    "a pipe": lambda c: ((c / "model-00001.safetensors").unlink(), os.mkfifo(c / "model-00001.safetensors")),
    "too few strides": lambda c: rewrite(c / "checkpoint.json", '"stride":[12,1,6,3]', '"stride":[12,1,6]'),
    "strides with gaps": lambda c: rewrite(c / "checkpoint.json", '"stride":[12,1,6,3]', '"stride":[99,1,6,3]'),
    "state that is not there": lambda c: rewrite(c / "checkpoint.json", '"name":"optimizer.', '"name":"other.'),
    "a tie": lambda c: rewrite(c / "checkpoint.json", '"tied.weight":"first.weight"', '"tied.weight":"other.weight"'),
    "NumPy's generator": lambda c: rewrite(c / "checkpoint.json", '"pos":', '"pos":7'),
    "a generator": lambda c: rewrite(c / "checkpoint.json", '"generator":"', '"generator":"AAAA'),
    "Python's generator": lambda c: rewrite(
        c / "checkpoint.json",
        '"python_random":{"type":"items","kind":"tuple","items":[3',
        '"python_random":{"type":"items","kind":"tuple","items":[4',
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_changes_nothing(damage: str, saved: tuple[Any, Path]) -> None:
    model, path = saved
    optimizer = model.aotpack.optimizer()
    trained(model, optimizer, 1)
    before = everything(model, optimizer)
    DAMAGES[damage](path)
    with pytest.raises(CheckpointError, match=r"damaged|no whole checkpoint"):
        model.aotpack.load_checkpoint(path, optimizer=optimizer)
    assert_same(everything(model, optimizer), before)


def test_calls_without_a_step_are_not_lost(bundle: Path, tmp_path: Path) -> None:
    model = aotpack_loader.load(bundle)
    optimizer = model.aotpack.optimizer(accumulate=2)
    optimizer.skipped = 3
    optimizer.train_step(torch.randn(5, 4))
    with pytest.raises(CheckpointError, match=r"optimizer: 1 calls of train_step have no step yet"):
        model.aotpack.save_checkpoint(tmp_path / "c", optimizer=optimizer)
    optimizer.train_step(torch.randn(5, 4))
    model.aotpack.save_checkpoint(tmp_path / "c", optimizer=optimizer)
    again = model.aotpack.optimizer(accumulate=2)
    model.aotpack.load_checkpoint(tmp_path / "c", optimizer=again)
    assert again.skipped == 3


def test_all_that_does_not_fit_is_listed(saved: tuple[Any, Path]) -> None:
    model, path = saved
    document = decode((path / "checkpoint.json").read_bytes(), CheckpointDocument, where="")
    assert document.step == 1
    model.norm.running_mean = torch.zeros(6, dtype=torch.float64)
    model.tied.weight = nn.Parameter(model.tied.weight.clone())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    before = everything(model, optimizer, scheduler)
    with pytest.raises(CheckpointError) as error:
        model.aotpack.load_checkpoint(path, optimizer=optimizer, scheduler=scheduler)
    found = {problem.where: problem.message for problem in error.value.problems}
    assert found["norm.running_mean"] == "is float64[6], the checkpoint has float32[6]"
    assert found["optimizer"] == "has 1 groups, the checkpoint has 2"
    assert "is no scheduler of the checkpoint" in found["scheduler"]
    assert "norm.bias" in found["optimizer.param_groups[0]"]
    assert "tied.weight" not in found  # the same values, now in two tensors
    assert_same(everything(model, optimizer, scheduler), before)


class Cell(nn.Module):
    """A call assigns a tensor with a gradient to the buffer."""

    mem: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mem", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mem = 0.9 * self.mem + self.linear(x)
        return self.mem.square().mean()


def test_buffers_that_calls_assign(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "cell.aotpack"
    aotpack.build(Cell(), (torch.randn(3, 4),), out=path, targets=("portable",), methods=("train",))
    model, other = aotpack_loader.load(path), aotpack_loader.load(path)
    x = torch.randn(3, 4)
    model(x)
    assert model.mem.requires_grad
    model.aotpack.save_checkpoint(tmp_path / "c")
    other.aotpack.load_checkpoint(tmp_path / "c")
    assert torch.equal(other.mem, model.mem)
    assert not other.mem.requires_grad
    model.mem = model.mem.detach()
    assert torch.equal(model(x), other(x))


def test_too_much_plain_data(saved: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = saved
    monkeypatch.setattr(folder, "MAX_DOCUMENT_BYTES", 1000)
    with pytest.raises(CheckpointError, match="too much plain data"):
        model.aotpack.save_checkpoint(path, extra={"text": "x" * 2000})
    assert model.aotpack.load_checkpoint(path).step == 1


def test_what_was_loaded_is_undone(saved: tuple[Any, Path]) -> None:
    """A scheduler fails after the optimizer has taken its state."""
    model, path = saved

    class Failing:
        def __init__(self) -> None:
            self.value = 0.0

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.value = state["value"]
            if self.value == 1.0:
                raise ValueError("not this one")

    optimizer, failing = model.aotpack.optimizer(), Failing()
    failing.value = 1.0
    trained(model, optimizer, 1)
    model.aotpack.save_checkpoint(path, optimizer=optimizer, scheduler=failing)
    failing.value = 0.0
    trained(model, optimizer, 1)
    before = everything(model, optimizer, failing)
    with pytest.raises(CheckpointError, match="not this one"):
        model.aotpack.load_checkpoint(path, optimizer=optimizer, scheduler=failing)
    assert_same(everything(model, optimizer, failing), before)
    trained(model, optimizer, 1)


def test_a_checkpoint_of_another_bundle(saved: tuple[Any, Path], tmp_path: Path) -> None:
    model, path = saved
    torch.manual_seed(1)
    other = tmp_path / "other.aotpack"
    aotpack.build(Net(), (torch.randn(5, 4),), out=other, targets=("portable",), methods=("train",))
    loaded = aotpack_loader.load(other)
    with pytest.raises(CheckpointError, match="of another bundle") as error:
        loaded.aotpack.load_checkpoint(path)
    assert len(error.value.problems) == 1
    assert loaded.aotpack.load_checkpoint(path, same_bundle=False).step == 1
    assert_same(everything(loaded), everything(model))


def test_what_cannot_be_stored(bundle: Path, tmp_path: Path) -> None:
    model = aotpack_loader.load(bundle)
    strange = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    strange.param_groups[0]["odd"] = object()
    with pytest.raises(CheckpointError) as error:
        model.aotpack.save_checkpoint(tmp_path / "c", optimizer=strange, extra={"a": {1.5}, "b": 2**70})
    assert {problem.where for problem in error.value.problems} == {
        "optimizer.param_groups[0]", "optimizer.param_groups.0.odd", "extra.a", "extra.b"
    }  # fmt: skip
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"step": -1}, r"Expected `int` >= 0 - at `\$\.step`"),
        ({"step": 1.5}, r"Expected `int`, got `float` - at `\$\.step`"),
        ({"step": torch.tensor(3)}, "type Tensor"),
        ({"extra": {"note": "\ud800"}}, "surrogates not allowed"),
        ({"extra": [1]}, "extra= takes a dictionary with names, and no list"),
        ({"optimizer": 5}, "optimizer: is a int, and no optimizer"),
        ({"optimizer": {"first": [torch.optim.SGD]}}, "first: is a list, and no optimizer"),
        ({"scheduler": 5}, "scheduler: is a int, and no scheduler"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(given: dict[str, Any], text: str, saved: tuple[Any, Path]) -> None:
    model, path = saved
    with pytest.raises(CheckpointError, match=text):
        model.aotpack.save_checkpoint(path, asynchronous=True, **given)
    assert model.aotpack.load_checkpoint(path).step == 1
    if "optimizer" in given:
        with pytest.raises(CheckpointError, match=text):
            model.aotpack.load_checkpoint(path, **given)


# ---------------------------------------------------------------- places


def test_nothing_else_is_replaced(bundle: Path, tmp_path: Path) -> None:
    model = aotpack_loader.load(bundle)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("")
    (tmp_path / "file").write_text("")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model-00001.safetensors").write_text("")
    for name in ("other", "file", "weights", "missing/c"):
        with pytest.raises(CheckpointError, match=r"is no checkpoint and is not replaced|There is no directory"):
            model.aotpack.save_checkpoint(tmp_path / name)
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        model.aotpack.load_checkpoint(tmp_path / "missing")
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        model.aotpack.load_checkpoint(tmp_path / "file")
    (tmp_path / "new").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "new")
    model.aotpack.save_checkpoint(tmp_path / "link", step=4)
    assert model.aotpack.load_checkpoint(tmp_path / "new").step == 4


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder in which 64 KiB have space."""
    with small_folder(tmp_path / "small", 64 << 10) as folder:
        yield folder


def test_a_full_disk_leaves_the_earlier_checkpoint(bundle: Path, small: Path) -> None:
    model = aotpack_loader.load(bundle)
    full = "No space left on device|File too large"
    model.aotpack.save_checkpoint(small / "c", step=1)
    extra = {"large": torch.zeros(30_000)}
    with pytest.raises(CheckpointError, match=rf"cannot be written: ({full})"):
        model.aotpack.save_checkpoint(small / "c", step=2, extra=extra)
    later = model.aotpack.save_checkpoint(small / "c", step=3, extra=extra, asynchronous=True)
    with pytest.raises(CheckpointError, match=full):
        later.wait()
    later.wait()
    model.aotpack.save_checkpoint(small / "c", step=4, extra=extra, asynchronous=True)
    with pytest.raises(CheckpointError, match=full):
        model.aotpack.save_checkpoint(small / "c", step=5)
    assert model.aotpack.load_checkpoint(small / "c").step == 1
    assert os.listdir(small) == ["c"]
    model.aotpack.save_checkpoint(small / "c", step=6)
    assert model.aotpack.load_checkpoint(small / "c").step == 6


def test_an_error_that_nobody_waits_for_is_shown(bundle: Path, tmp_path: Path) -> None:
    code = """
import os, sys
import aotpack_loader
from aotpack_loader.checkpoints import saving
def fail(*_):
    raise saving.CheckpointError("The disk is gone.")
saving.write_folder = fail
model = aotpack_loader.load(sys.argv[1])
model.aotpack.save_checkpoint("c", asynchronous=True)
"""
    run = subprocess.run([sys.executable, "-c", code, bundle], cwd=tmp_path, capture_output=True, text=True)
    assert "CheckpointError: The disk is gone." in run.stderr


def test_readers_see_whole_checkpoints(bundle: Path, tmp_path: Path) -> None:
    """One thread replaces a checkpoint again and again, another one reads it."""
    model, other = aotpack_loader.load(bundle), aotpack_loader.load(bundle)
    model.aotpack.save_checkpoint(tmp_path / "c")
    end = threading.Event()

    def write() -> None:
        step = 0
        while not end.is_set():
            step += 1
            with torch.no_grad():
                for value in [*model.parameters(), *model.buffers()]:
                    value.fill_(step)
            model.aotpack.save_checkpoint(tmp_path / "c", step=step)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        steps = set()
        for _ in range(60):
            step = other.aotpack.load_checkpoint(tmp_path / "c").step
            steps.add(step)
            assert all(torch.all(value == step) for value in other.parameters()) or step == 0
    finally:
        end.set()
        writer.join()
    assert len(steps) > 2


# ---------------------------------------------------------------- starts, kills


def test_a_load_does_not_import_it(bundle: Path, fresh_process: FreshProcess) -> None:
    code = """
        import json, sys
        import aotpack_loader
        aotpack_loader.load(sys.argv[1])
        before = [name for name in sys.modules if "checkpoints" in name]
        print(json.dumps(before))
    """
    assert fresh_process(code, bundle, from_nothing=True) == []


def test_saving_imports_no_compiler(bundle: Path, tmp_path: Path, fresh_process: FreshProcess) -> None:
    code = """
        import json, sys
        import aotpack_loader
        model = aotpack_loader.load(sys.argv[1])
        optimizer = model.aotpack.optimizer()
        model.aotpack.save_checkpoint(sys.argv[2], optimizer=optimizer)
        model.aotpack.load_checkpoint(sys.argv[2], optimizer=optimizer)
        print(json.dumps([name for name in sys.modules if name in ("torch._dynamo", "torch._inductor", "aotpack")]))
    """
    assert fresh_process(code, bundle, tmp_path / "c", from_nothing=True) == []


def test_runs_that_are_killed_end_as_others_do(tmp_path: Path) -> None:
    out = tmp_path / "kill.json"
    run = subprocess.run(
        [ROOT / "scripts" / "kill", "train", "--times", "10", "--out", out, "--folder", tmp_path], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    counts = json.loads(out.read_text())["operations"]["train"]
    assert counts["killed"] == 10
    assert counts["findings"] == []

"""Buffers to which a call assigns tensors with gradients: spiking neurons and stateful cells, over several calls."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FreshProcess
from torch import nn

import aotpack
from aotpack_loader.errors import BuildError, InputError
from aotpack_loader.format import versions


class Surrogate(torch.autograd.Function):
    """A spike whose gradient is that of a fast sigmoid, as in spiking networks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient / (1 + 5 * x.abs()) ** 2


class Leaky(nn.Module):
    """A leaky integrate-and-fire neuron with its membrane as a buffer, as snntorch's ``init_hidden=True`` has it."""

    mem: torch.Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mem", torch.zeros(shape), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        reset = (self.mem > 1).float().detach()
        self.mem = 0.9 * self.mem + x - reset
        spikes: torch.Tensor = Surrogate.apply(self.mem - 1)
        return spikes


class Spiking(nn.Module):
    """Two spiking layers, of which the membranes of both are state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one = nn.Linear(4, 6), Leaky(3, 6)
        self.second, self.two = nn.Linear(6, 2), Leaky(3, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.two(self.second(self.one(self.first(x) * 3))), self.two.mem


STEPS = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module", params=["portable", pytest.param("cpu", marks=pytest.mark.compiled)])
def target(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def model() -> Spiking:
    torch.manual_seed(0)
    return Spiking()


@pytest.fixture(scope="module")
def bundle(model: Spiking, target: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("assigned") / "m.aotpack"
    report = aotpack.build(model, (STEPS[0],), out=path, targets=(target,), self_test=True)
    assert report.methods == ("train", "infer")
    assert torch.equal(model.one.mem, torch.zeros(3, 6)), "a build leaves the model as it was"
    assert "forward" not in vars(model)
    return path


@pytest.fixture
def pair(model: Spiking, bundle: Path, target: str) -> tuple[Spiking, Any]:
    return copy.deepcopy(model), aotpack.load(bundle, backend=target).train()


def whole(model: Any) -> list[torch.Tensor]:
    """A backward through all steps of a sequence, as users train such networks."""
    model.zero_grad()
    loss = torch.zeros(())
    for x in STEPS:
        spikes, membrane = model(x)
        assert membrane is model.two.mem
        loss = loss + spikes.sum() + membrane.square().sum()
    loss.backward()
    return [loss.detach(), *grads(model), model.one.mem.detach(), model.two.mem.detach()]


def truncated(model: Any) -> list[torch.Tensor]:
    """A backward for each step, with state that is detached between them."""
    model.zero_grad()
    for x in STEPS:
        spikes, membrane = model(x)
        (spikes.sum() + membrane.square().sum()).backward()
        model.one.mem = model.one.mem.detach()
        model.two.mem.detach_()
    return [*grads(model), model.one.mem, model.two.mem]


def reset(model: Any) -> list[torch.Tensor]:
    """A new sequence after another one."""
    model(STEPS[0])
    for neuron in (model.one, model.two):
        neuron.mem = torch.zeros_like(neuron.mem)
    return whole(model)


def twice(model: Any) -> list[torch.Tensor]:
    """A second sequence that goes on where the first ended, detached in place."""
    whole(model)
    for buffer in model.buffers():
        buffer.detach_()
    return whole(model)


def without_gradients(model: Any) -> list[torch.Tensor]:
    model.eval()
    with torch.no_grad():
        results = [tensor for x in STEPS for tensor in model(x)]
    assert not model.one.mem.requires_grad
    return [*results, model.one.mem, model.two.mem]


def given_state(model: Any) -> list[torch.Tensor]:
    """The caller's own state requires gradients, and gets them."""
    start = torch.ones(3, 6, requires_grad=True)
    model.one.mem = start
    return [*whole(model), start.grad]  # type: ignore[list-item]


def grads(model: Any) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("use", [whole, truncated, reset, twice, without_gradients, given_state])
def test_state_is_as_in_eager(pair: tuple[Spiking, Any], use: Callable[[Any], list[torch.Tensor]]) -> None:
    eager, loaded = map(use, pair)
    torch.testing.assert_close(loaded, eager)


def test_a_second_backward_through_old_state_is_refused_as_in_eager(pair: tuple[Spiking, Any]) -> None:
    for model in pair:
        whole(model)
        with pytest.raises(RuntimeError, match=r"second time|released"):
            whole(model)


def test_buffers_are_those_of_any_module(pair: tuple[Spiking, Any]) -> None:
    _, loaded = pair
    assert [name for name, _ in loaded.named_buffers()] == ["one.mem", "two.mem"]
    assert list(loaded.state_dict()) == ["first.weight", "first.bias", "second.weight", "second.bias"]
    loaded(STEPS[0])
    assert loaded.one.mem.grad_fn is not None
    loaded.two.mem = torch.zeros(5, 2)
    with pytest.raises(InputError, match=r"buffer 'two.mem': expected"):
        loaded(STEPS[0])


def test_a_failed_call_changes_no_state(pair: tuple[Spiking, Any]) -> None:
    for model in pair:
        before = model.one.mem
        with pytest.raises((InputError, RuntimeError)):
            model(torch.zeros(3, 5))
        assert model.one.mem is before


def test_state_of_the_callers_own(pair: tuple[Spiking, Any]) -> None:
    eager, loaded = pair
    eager(STEPS[0])
    state = {name: torch.zeros_like(buffer) for name, buffer in loaded.named_buffers()}
    loaded(STEPS[0], aotpack_state=state)
    torch.testing.assert_close(state["one.mem"], eager.one.mem)
    assert torch.equal(loaded.one.mem, torch.zeros(3, 6))


def test_what_a_bundle_says_of_it(bundle: Path, target: str) -> None:
    loaded = aotpack.load(bundle, backend=target)
    program = loaded.aotpack.program
    assert program.assigned == ["one.mem", "two.mem"]
    assert versions.ASSIGNED_STATE in program.features
    assert [parameter.name for parameter in program.signature or ()] == ["x"]


FRESH = """
import json, sys
import torch
import aotpack_loader
model = aotpack_loader.load(sys.argv[1], backend=sys.argv[2]).train()
steps = torch.tensor(json.loads(sys.argv[3]))
loss = 0
for x in steps:
    spikes, membrane = model(x)
    loss = loss + spikes.sum() + membrane.square().sum()
loss.backward()
print(json.dumps([p.grad.flatten().tolist() for p in model.parameters()]))
"""


def test_training_in_a_fresh_process(model: Spiking, bundle: Path, target: str, fresh_process: FreshProcess) -> None:
    found = fresh_process(FRESH, bundle, target, json.dumps(STEPS.tolist()))
    eager = copy.deepcopy(model)
    whole(eager)
    for ours, theirs in zip(found, grads(eager), strict=True):
        torch.testing.assert_close(torch.tensor(ours), theirs.flatten())


def test_sizes_of_state_vary(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, batch = Spiking(), torch.export.Dim("batch", min=2, max=64)
    sizes = {"x": {0: batch}, "one.mem": {0: batch}, "two.mem": {0: batch}}
    aotpack.build(model, (STEPS[0],), out=tmp_path / "m", targets=("portable",), dynamic_shapes=sizes)
    loaded = aotpack.load(tmp_path / "m").train()
    found = []
    for one in (model, loaded):
        one.one.mem, one.two.mem = torch.zeros(7, 6), torch.zeros(7, 2)
        one.zero_grad()
        x = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
        (one(x)[1].sum() + one(x)[1].square().sum()).backward()
        found.append(grads(one))
    torch.testing.assert_close(found[1], found[0])


class Grows(nn.Module):
    """State without its size before the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("mem", torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mem.shape != x.shape:
            self.mem = torch.zeros_like(x)
        self.mem = self.mem + x * self.weight
        return self.mem * 2


def test_state_gets_its_size_before_the_build(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"'mem' of shape \[0\], dtype float32 a tensor of another shape.*warm_up"):
        aotpack.build(Grows(), (STEPS[0],), out=tmp_path / "m", targets=("portable",))
    aotpack.build(Grows(), (STEPS[0],), out=tmp_path / "m", targets=("portable",), warm_up=True)
    loaded = aotpack.load(tmp_path / "m").train()
    loaded.mem = torch.zeros(3, 4)
    loaded(STEPS[0])
    (loaded(STEPS[1]) ** 2).sum().backward()
    torch.testing.assert_close(loaded.weight.grad, (8 * (STEPS[0] + STEPS[1]) ** 2).sum(0))


def test_state_varies_with_the_argument_that_it_is_made_for(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    model = Grows()
    built = {"targets": ("portable",), "warm_up": True, "dynamic_shapes": {"x": {0: batch}}}
    aotpack.build(model, (STEPS[0],), out=tmp_path / "m", **built)
    loaded = aotpack.load(tmp_path / "m").train()
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    with pytest.raises(InputError, match=r"buffer 'mem': expected float32\[batch=7,4\].*\n.*Assign buffers of these sizes"):
        loaded(x)
    loaded.mem = torch.zeros(7, 4)
    for one in (model, loaded):
        one(x).square().sum().backward()
    torch.testing.assert_close(loaded.weight.grad, model.weight.grad)
    torch.testing.assert_close(loaded.mem, model.mem)


class Keeps(nn.Module):
    """Statistics of the rows of a batch, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = 0.9 * self.seen + x.detach().sum(1)
        return x * self.weight


def test_statistics_of_rows_vary_with_the_rows(tmp_path: Path) -> None:
    model, sizes = Keeps(), {"x": {0: torch.export.Dim("batch", min=2, max=64)}}
    aotpack.build(model, (STEPS[0],), out=tmp_path / "m", targets=("portable",), dynamic_shapes=sizes)
    loaded = aotpack.load(tmp_path / "m").train()
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    for one in (model, loaded):
        one.seen = torch.ones(7)
        one(x).sum().backward()
    torch.testing.assert_close(loaded.seen, model.seen)
    torch.testing.assert_close(loaded.weight.grad, model.weight.grad)

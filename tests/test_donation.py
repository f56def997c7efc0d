"""Donated buffers of the cpu target: the backward writes results where saved values were, unless those are needed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from support.archive import tiny_program
from torch import nn

import aotpack
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import CorruptBundleError
from aotpack_loader.format import media_types, schema
from aotpack_loader.format.validate_target import validate_target

ROWS, WIDTH = 64, 48
HIDDEN = ROWS * WIDTH * 4
"""Bytes of what the forward saves."""


class Wave(nn.Module):
    """The gradient of the product is computed from the product alone: it fits where that was."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).sin().sum()


class Joined(nn.Module):
    """Compiled code writes one value where its concatenation with another is to be, and the backward needs both."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wave = (x @ self.weight).sin()
        joined = torch.cat([wave.exp(), wave * 2], 1)
        return (joined @ joined.T).cos().sum() + wave.exp().square().sum()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("donation") / "wave.aotpack"
    aotpack.build(Wave(), (torch.randn(ROWS, 32),), out=path, targets=("cpu",), methods=("train",))
    return path


@pytest.fixture(params=["native", "python"])
def model(request: pytest.FixtureRequest, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AOTPACK_NATIVE_CALL", "1" if request.param == "native" else "0")
    loaded = aotpack.load(bundle, backend="cpu")
    assert loaded.aotpack.calls["train"].startswith(request.param)
    return loaded


def target_of(path: Path) -> tuple[schema.Target, schema.Program]:
    with Bundle.open(path) as found:
        (target,) = (target for target in found.targets.values() if target.kind == "aoti")
        return target, found.program


def expected(model: Any, x: torch.Tensor) -> torch.Tensor:
    eager = Wave()
    eager.load_state_dict(model.state_dict())
    eager(x).backward()
    assert eager.weight.grad is not None
    return eager.weight.grad


def allocated(step: Any) -> list[int]:
    """Sizes in bytes of what ``step`` allocates."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events: Any = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    return [event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > 0]


def test_the_gradient_takes_the_memory_of_what_was_saved(model: Any) -> None:
    x = torch.randn(ROWS, 32)
    model(x).backward()
    model.weight.grad = None
    loss = model(x)
    assert HIDDEN not in allocated(loss.backward)
    torch.testing.assert_close(model.weight.grad, expected(model, x))


def test_what_is_needed_again_is_left(model: Any) -> None:  # X7
    x = torch.randn(ROWS, 32)
    loss = model(x)
    once, twice = (torch.autograd.grad(loss, model.weight, retain_graph=True)[0] for _ in range(2))
    (last,) = torch.autograd.grad(loss, model.weight)
    for found in (once, twice, last):
        torch.testing.assert_close(found, expected(model, x))


def test_what_hooks_may_have_kept_is_left_to_them(model: Any) -> None:  # X7
    x = torch.randn(ROWS, 32)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append((tensor, tensor.clone()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(x)
    loss.backward()
    assert any(tensor.nbytes == HIDDEN for tensor, _ in kept)
    assert all(torch.equal(*pair) for pair in kept)


@pytest.mark.parametrize("retain", [False, True])
def test_checks_know_what_may_be_overwritten(bundle: Path, *, retain: bool) -> None:
    model = aotpack.load(bundle, backend="cpu", check="full")
    x = torch.randn(ROWS, 32)
    loss = model(x)
    for _ in range(1 + retain):
        (found,) = torch.autograd.grad(loss, model.weight, retain_graph=retain)
        torch.testing.assert_close(found, expected(model, x))


def test_what_shares_a_buffer_is_not_donated(tmp_path: Path) -> None:
    torch.manual_seed(0)
    eager, x = Joined().double(), torch.randn(ROWS, 32, dtype=torch.float64)
    aotpack.build(eager, (x,), out=tmp_path / "m", targets=("cpu",), methods=("train",), cache=False)
    model = aotpack.load(tmp_path / "m", backend="cpu")
    for step in (eager, model):
        step(x).backward()
    torch.testing.assert_close(model.weight.grad, eager.weight.grad)


@pytest.mark.parametrize(
    ("donated", "message"),
    [
        ([9], "C27: input 9 may not be donated"),
        ([0, 0], "C27: an input is donated twice"),
    ],
)
def test_documents_that_do_not_fit(bundle: Path, donated: list[int], message: str) -> None:  # C27
    target, program = target_of(bundle)
    backward = target.executables["train.backward"]
    (own,) = backward.donated
    indices = [own if position == 0 else position for position in donated]
    changed = {**target.executables, "train.backward": structs.replace(backward, donated=indices)}
    with pytest.raises(CorruptBundleError, match=message):
        validate_target(structs.replace(target, executables=changed), program, "target")


def test_primals_are_not_donated(bundle: Path) -> None:  # C27
    target, program = target_of(bundle)
    backward, forward = (target.executables[f"train.{half}"] for half in ("backward", "forward"))
    for key, code, position in (
        ("train.forward", forward, 0),
        ("train.backward", backward, 1 - backward.donated[0]),
    ):
        changed = {**target.executables, key: structs.replace(code, donated=[position])}
        with pytest.raises(CorruptBundleError, match=f"C27: input {position} may not be donated"):
            validate_target(structs.replace(target, executables=changed), program, "target")


def test_parts_of_a_graph_overwrite_nothing() -> None:  # C27
    code = schema.Descriptor(media_types.CODE_AOTI, "sha256:" + "0" * 64, 1)
    part = schema.Executable(code, [schema.GivenInput(0)], [0], donated=[0])
    sequence = schema.Sequence([schema.PartCall("part", [0])], [1])
    program = tiny_program(schema.Descriptor(media_types.GRAPH, "sha256:" + "0" * 64, 1), [])
    target = schema.Target("cpu", "aoti", "cpu", {"part": part}, sequences={"infer.forward": sequence})
    with pytest.raises(CorruptBundleError, match="C27: input 0 may not be donated"):
        validate_target(target, program, "target")

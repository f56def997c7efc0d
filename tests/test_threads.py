"""What a build replaces in torch acts in its own thread alone, and is restored however the build ends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import gc
import inspect
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.compiler import is_compiling, is_exporting
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.utils.checkpoint import checkpoint

import aotpack
from aotpack._torch.api import building, patching
from aotpack._torch.api.building import Build, Replaced, builds, one_build
from aotpack._torch.fixes.entries import FIXES, HOOKS
from aotpack._torch.fixes.sources import resolve


class Net(nn.Module):
    """Uses much of what a build replaces: modules of several kinds, a checkpoint, a move and a mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=None)
        self.last = nn.Linear(8, 2)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first.to("cpu")(x)))
        return torch.tanh(self.last(hidden)) if self.training else self.last(hidden)


def built(out: Path, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    options = {"targets": ("portable",), "methods": ("train",), **options}
    aotpack.build(model, (torch.randn(3, 4),), out=out, **options)
    return model


def acts_as(model: nn.Module, out: Path) -> bool:
    """Whether the bundle ``out`` has the gradients of ``model``."""
    loaded, x = aotpack.load(out), torch.randn(3, 4)
    for each in (model, loaded):
        each(x).square().sum().backward()
    pairs = zip(model.parameters(), loaded.parameters(), strict=True)
    return all(torch.allclose(mine.grad, theirs.grad) for mine, theirs in pairs)  # type: ignore[arg-type]


def process() -> dict[str, Any]:
    """What a build must leave as it was: all that the register says is replaced, and other state of the process."""
    found: dict[str, Any] = {}
    for patch in {patch.partition("[")[0] for entry in (*FIXES, *HOOKS) for patch in entry.patches}:
        owner, _, name = patch.rpartition(".")
        with contextlib.suppress(LookupError, AttributeError, ImportError):
            value = inspect.getattr_static(resolve(owner), name)
            found[patch] = dict(value) if isinstance(value, dict) else id(value)
    assert len(found) > 100
    return found | {
        "environment": dict(os.environ),
        "warnings": [*warnings.filters],
        "logging": {name: kept for name in [*logging.root.manager.loggerDict] if (kept := [*logging.getLogger(name).filters])},
        "collector": (gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled()),
        "checks": torch.distributions.Distribution._validate_args,
        "dtype": torch.get_default_dtype(),
        "hooks": dict(nn.modules.module._global_forward_hooks),
    }


def differences(before: dict[str, Any]) -> dict[str, Any]:
    now = process()
    return {name: (value, now[name]) for name, value in before.items() if value != now[name]}


@pytest.fixture(scope="module", autouse=True)
def first_build(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Imports what builds import, and lets torch set up what it keeps."""
    built(tmp_path_factory.mktemp("first") / "m.aotpack")


# ------------------------------------------------------------------ threads


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_two_threads_build_at_once(tmp_path: Path, target: str) -> None:
    before, outs = process(), [tmp_path / f"{i}.aotpack" for i in range(2)]
    with ThreadPoolExecutor(2) as threads:
        models = [*threads.map(lambda out: built(out, targets=(target,)), outs)]
    assert all(map(acts_as, models, outs))
    assert differences(before) == {}


def test_builds_of_coroutines(tmp_path: Path) -> None:
    outs = [tmp_path / f"{i}.aotpack" for i in range(2)]

    async def both() -> list[nn.Module]:
        return [*await asyncio.gather(*(asyncio.to_thread(built, out) for out in outs))]

    assert all(map(acts_as, asyncio.run(both()), outs))


def steps(model: nn.Module, x: torch.Tensor, wanted: Callable[[int], bool]) -> Iterator[float]:
    """Train in eager, with much of what a build replaces; yields the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    number = 0
    while wanted(number):
        model.calls += 1
        hidden = checkpoint(model, x, use_reentrant=True)
        loss = checkpoint(model, x, use_reentrant=False).square().mean()
        (slope,) = torch.autograd.grad(loss, [x], retain_graph=True)
        loss = loss + hidden.sum()
        x.register_hook(lambda gradient: gradient * 2)
        loss.backward()
        if bool(loss.isfinite()) and torch.get_rng_state().numel() and slope.shape == x.shape:
            optimizer.step()
        with torch.inference_mode():
            assert model.eval()(x).is_inference()
        model.train()
        optimizer.zero_grad()
        yield loss.item()
        number += 1


def test_a_thread_trains_while_another_builds(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(5, 4, requires_grad=True)
    again, other = copy.deepcopy(model), x.detach().clone().requires_grad_()
    ends, started = threading.Event(), threading.Event()

    def train() -> list[float]:
        losses = []
        for loss in steps(model, x, lambda number: not ends.is_set()):
            losses.append(loss)
            started.set()
        return losses

    with ThreadPoolExecutor(1) as threads:
        training = threads.submit(train)
        started.wait(10)
        try:
            built_model = built(tmp_path / "m.aotpack")
        finally:
            ends.set()
        losses = training.result()
    assert acts_as(built_model, tmp_path / "m.aotpack")
    assert losses == [*steps(again, other, lambda number: number < len(losses))]
    assert len(losses) > 3


def compiles() -> tuple[bool, ...]:
    """Of names that were imported before the build, too."""
    functions = (is_compiling, is_exporting, is_fx_symbolic_tracing, torch.compiler.is_compiling, torch._dynamo.is_compiling)
    return tuple(function() for function in functions)


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_other_threads_do_not_compile(tmp_path: Path, target: str) -> None:
    """A function that another thread has compiled runs, too: it would be refused while FX traces."""
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    x, ends, answers, values = torch.randn(3), threading.Event(), set[tuple[bool, ...]](), list[torch.Tensor]()
    expected = compiled(x)

    def ask() -> None:
        while not ends.is_set():
            answers.add(compiles())
            values[:] = [compiled(x)]
            ends.wait(0.001)

    def traced(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.compiler.is_compiling() else x

    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(ask)
        try:
            aotpack.build(
                traced,
                (x,),
                out=tmp_path / "m.aotpack",
                targets=(target,),
                front_ends=("export",),
                methods=("infer",),
                check=False,
            )
        finally:
            ends.set()
        asking.result()
    assert torch.equal(aotpack.load(tmp_path / "m.aotpack")(x), x * 2)  # the thread that builds does
    assert answers == {(False,) * 5}
    assert torch.equal(values[0], expected)


# ------------------------------------------------------------------ replacements


class Owner:
    base = 1

    def method(self) -> str:
        return "torch's"

    @staticmethod
    def static() -> str:
        return "torch's"

    @classmethod
    def of_class(cls) -> str:
        return f"torch's {cls.base}"


def elsewhere(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def test_a_replacement_acts_in_its_thread_alone() -> None:
    def found() -> list[str]:
        return [Owner().method(), Owner.static(), Owner.of_class()]

    with (
        patching.replaced("none", Owner, "method", lambda self: "ours"),
        patching.replaced("none", Owner, "static", lambda: "ours"),
        patching.replaced("none", Owner, "of_class", lambda cls: f"ours {cls.base}"),
    ):
        assert found() == ["ours", "ours", "ours 1"]
        assert elsewhere(found) == ["torch's", "torch's", "torch's 1"]
        context = contextvars.copy_context()
        assert elsewhere(lambda: context.run(found)) == ["ours", "ours", "ours 1"]  # a part of the build
    assert found() == elsewhere(found) == ["torch's", "torch's", "torch's 1"]
    assert not context.run(builds)  # the build has ended
    patching._made.difference_update({made for made in patching._made if made.identifier == "none"})


def test_values_do_not_pass_for_functions() -> None:
    with pytest.raises(TypeError, match="no function"), patching.hooked("none", Owner, "base", 2):
        pass
    patching._made.difference_update({made for made in patching._made if made.identifier == "none"})


def test_another_thread_waits_for_the_build() -> None:
    with one_build(), one_build(), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: building.compile_lock.acquire(timeout=0.1))
        assert not waiting.result()
    assert elsewhere(lambda: building.compile_lock.acquire(timeout=1) and building.compile_lock.release() is None)


def test_an_interrupted_restoration_goes_on() -> None:
    restored, build = list[int](), Build()

    def restore(number: int) -> None:
        restored.append(number)
        if restored.count(number) == 1:
            raise KeyboardInterrupt

    for number in range(3):
        build.add(Replaced(object(), "x", lambda number=number: restore(number)))  # type: ignore[misc]
    with pytest.raises(KeyboardInterrupt):
        build.end()
    assert restored == [2, 2, 1, 1, 0, 0]


def test_what_an_interrupt_left_is_restored_first() -> None:
    """A later replacement of the same attribute would bring ours back."""
    with one_build() as build:
        with patching.attribute_set(owner := Owner(), "method", 1):
            build.add(Replaced(owner, "method", lambda: setattr(owner, "method", 1)))  # as a later one, never left
        assert owner.method() == "torch's"


# ------------------------------------------------------------------ ends of a build


class Stops:
    """Raises an error where a stage begins, or where it ends."""

    def __init__(self, stage: str, when: str, error: type[BaseException]) -> None:
        self.wanted, self.error = (stage, when), error

    @contextlib.contextmanager
    def stage(self, name: str, detail: str = "") -> Iterator[None]:
        self._reach(name, "begins")
        yield
        self._reach(name, "ends")

    def _reach(self, name: str, when: str) -> None:
        if (name, when) == self.wanted:
            raise self.error

    def note(self, message: str) -> None:
        pass

    def warn(self, message: str) -> None:
        pass


class StoppedError(Exception):
    pass


def works_as_before(before: dict[str, Any]) -> None:
    assert differences(before) == {}
    assert not builds()
    assert elsewhere(lambda: building.compile_lock.acquire(timeout=1) and building.compile_lock.release() is None)
    model = Net()
    model(torch.randn(3, 4)).sum().backward()
    assert model.first.weight.grad is not None


@pytest.mark.parametrize(
    ("stage", "when", "error"),
    [
        ("capture", "begins", StoppedError),
        ("capture", "ends", KeyboardInterrupt),
        ("partition", "begins", KeyboardInterrupt),
        ("partition", "ends", StoppedError),
        ("compile", "begins", StoppedError),
        ("compile", "ends", KeyboardInterrupt),
        ("weights", "begins", KeyboardInterrupt),
        ("weights", "ends", StoppedError),
        ("write", "begins", StoppedError),
        ("write", "ends", KeyboardInterrupt),
    ],
)
def test_a_stage_that_fails_leaves_torch_as_it_was(stage: str, when: str, error: type[BaseException], tmp_path: Path) -> None:
    before = process()
    with pytest.raises(error):
        built(tmp_path / "m.aotpack", observer=Stops(stage, when, error))
    works_as_before(before)


@pytest.mark.parametrize("error", [StoppedError, KeyboardInterrupt])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 0.99])
def test_an_interrupt_at_a_replacement_leaves_torch_as_it_was(
    place: float, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replacements of a build are counted; one of the next build is interrupted before it is made."""
    add, count = Build.add, [0, int(place * _replacements(tmp_path, monkeypatch))]

    def interrupted(build: Build, replaced: Replaced) -> None:
        add(build, replaced)
        count[0] += 1
        if count[0] > count[1]:
            raise error

    before = process()
    monkeypatch.setattr(Build, "add", interrupted)
    with pytest.raises((error, aotpack.AotpackError)):  # an analysis may say why it fails
        built(tmp_path / "m.aotpack")
    monkeypatch.undo()
    works_as_before(before)


_counted: list[int] = []


def _replacements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many attributes a build replaces."""
    if not _counted:
        add, made = Build.add, list[Replaced]()
        with monkeypatch.context() as patch:
            patch.setattr(Build, "add", lambda build, replaced: (made.append(replaced), add(build, replaced)))
            built(tmp_path / "counted.aotpack")
        _counted.append(len(made))
    return _counted[0]

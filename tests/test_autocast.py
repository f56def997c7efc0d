"""Methods for several autocasts in one bundle: a call takes the graphs for its caller's, and computes what eager does."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aotpack
from aotpack_loader import load
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import BuildError, ModeError
from aotpack_loader.selftest import run_self_test

BF16, FP16 = torch.bfloat16, torch.float16


class Network(nn.Module):
    """A weight that is used twice, a BatchNorm, and a loss, which autocast computes in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16, bias=False)  # before a BatchNorm its gradient would be zero, but for rounding
        self.norm = nn.BatchNorm1d(16)
        self.tied = nn.Linear(16, 16, bias=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        h = self.norm(self.first(x)).relu()
        logits = self.head(self.tied(self.tied(h)))
        return nn.functional.cross_entropy(logits, y), logits


X, Y = torch.randn(32, 8), torch.arange(32) % 4


def autocast(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def make() -> Network:
    torch.manual_seed(0)
    return Network()


def step(model: Any, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """What accelerate and Lightning do: the forward under autocast, the backward outside of it."""
    model.train()
    model.zero_grad()
    with autocast(dtype):
        loss, logits = model(X, Y)
    loss.backward()
    with torch.no_grad(), autocast(dtype):
        _, evaluated = model.eval()(X, Y)
    found = {"loss": loss, "logits": logits, "evaluated": evaluated}
    found |= {f"{name}.grad": parameter.grad for name, parameter in model.named_parameters()}
    return found | {name: buffer.clone() for name, buffer in model.named_buffers()}


def compare(eager: nn.Module, bundle: nn.Module, dtype: torch.dtype | None) -> None:
    found, expected = step(bundle, dtype), step(eager, dtype)
    assert found.keys() == expected.keys()
    error = 1e-5 if dtype is None else torch.finfo(dtype).eps
    for name, value in expected.items():
        assert found[name].dtype is value.dtype, name
        scale = float(value.detach().abs().max())
        torch.testing.assert_close(found[name], value, rtol=2 * error, atol=2 * error * scale, msg=lambda m, n=name: f"{n}: {m}")
    assert expected["loss"].dtype is torch.float32
    assert expected["logits"].dtype is (torch.float32 if dtype is None else dtype)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("both") / "m.aotpack"
    report = aotpack.build(make(), (X, Y), out=path, targets=("portable",), autocast="none,bf16", self_test=True)
    assert report.methods == ("train", "infer", "train.bf16", "infer.bf16")
    return path


def test_each_call_takes_the_graphs_for_its_autocast(both: Path) -> None:
    bundle, eager = load(both), make()
    for dtype in (None, BF16, BF16, None):
        compare(eager, bundle, dtype)


def test_weights_are_stored_once(both: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.aotpack"
    aotpack.build(make(), (X, Y), out=plain, targets=("portable",), self_test=True)
    with Bundle.open(both) as one, Bundle.open(plain) as other:
        assert one.program.weights == other.program.weights
        assert set(one.program.features) - set(other.program.features) == {"autocast-variants"}


def test_the_self_test_runs_in_the_state_that_was_recorded(both: Path, tmp_path: Path) -> None:
    assert run_self_test(both).ok
    only = tmp_path / "only.aotpack"
    aotpack.build(make(), (X, Y), out=only, targets=("portable",), autocast="bf16", self_test=True)
    assert run_self_test(only).ok


def test_one_autocast_alone_is_refused_elsewhere(tmp_path: Path) -> None:
    """The error says how to call, and how to build."""
    path = tmp_path / "m.aotpack"
    report = aotpack.build(make(), (X, Y), out=path, targets=("portable",), autocast="bf16")
    assert report.methods == ("train", "infer")
    bundle = load(path)
    compare(make(), bundle, BF16)
    with pytest.raises(ModeError, match=r"under torch\.autocast\('cpu', dtype=torch\.bfloat16\), or .*--autocast none,bf16 "):
        bundle.train()(X, Y)
    plain = tmp_path / "plain.aotpack"
    aotpack.build(make(), (X, Y), out=plain, targets=("portable",))
    with autocast(BF16), pytest.raises(ModeError, match=r"outside of torch\.autocast, or .*autocast='none,bf16' in Python"):
        load(plain)(X, Y)


def test_another_autocast_than_any_is_refused(both: Path) -> None:
    with autocast(FP16), pytest.raises(ModeError, match=r"without autocast and under autocast to torch\.bfloat16, .*float16"):
        load(both)(X, Y)


def test_the_state_of_the_caller_counts_where_nothing_is_said(tmp_path: Path) -> None:
    """What is asked for is built whatever autocast the build runs under."""
    path = tmp_path / "m.aotpack"
    with autocast(BF16):
        aotpack.build(make(), (X, Y), out=path, targets=("portable",), methods=("train",), autocast=("none", "fp16"))
    methods = load(path).aotpack.program.methods
    assert {name: method.autocast for name, method in methods.items()} == {"train": None, "train.fp16": "float16"}


def test_gradients_may_be_scaled(both: Path) -> None:
    """GradScaler scales the loss, and steps where no gradient is infinite."""
    found = []
    for model in (make(), load(both)):
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
        for _ in range(3):
            optimizer.zero_grad()
            with autocast(BF16):
                loss, _ = model(X, Y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        found.append(dict(model.named_parameters()))
    for name, parameter in found[0].items():
        torch.testing.assert_close(found[1][name], parameter, rtol=2e-2, atol=2e-3)


def test_plain_functions_and_second_derivatives(tmp_path: Path) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).float().sin().sum()

    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    path = tmp_path / "m.aotpack"
    aotpack.build(function, (x, w), out=path, targets=("portable",), autocast=("none", "bf16"), second_derivatives=True)
    bundle = load(path)
    for dtype in (None, BF16):
        found = []
        for call in (function, bundle):
            with autocast(dtype):
                (gradient,) = torch.autograd.grad(call(x, w), x, create_graph=True)
            (second,) = torch.autograd.grad(gradient.square().sum(), x)
            found.append((gradient.detach(), second))
        for expected, value in zip(*found, strict=True):
            torch.testing.assert_close(value, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))


def test_compiled_code_under_autocast(tmp_path: Path) -> None:
    path = tmp_path / "m.aotpack"
    aotpack.build(make(), (X, Y), out=path, targets=("cpu",), autocast="none,bf16")
    bundle, eager = load(path, backend="cpu"), make()
    for dtype in (None, BF16, None):
        compare(eager, bundle, dtype)


def test_an_unknown_autocast_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"autocast: 'bf8' is not one of none, bf16, fp16"):
        aotpack.build(make(), (X, Y), out=tmp_path / "m.aotpack", autocast="none,bf8")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        lstms = nn.LSTM(4, 3, 2, bidirectional=True), nn.LSTM(4, 3, proj_size=2)
        self.layers = nn.ModuleList([*lstms, nn.GRU(4, 3), nn.RNN(4, 3)])

    def forward(self, x: Tensor) -> list[Any]:
        return [layer(x) for layer in self.layers]


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="eager has no LSTM in bfloat16 on this processor")
def test_recurrent_layers_return_the_types_of_eager(tmp_path: Path) -> None:
    """In training eager's LSTM is oneDNN's kernel, which returns the type of the autocast; a GRU returns float32."""
    torch.manual_seed(0)
    model, x = Recurrent(), torch.randn(5, 2, 4)
    aotpack.build(model, (x,), out=tmp_path / "m.aotpack", targets=("portable",), autocast="bf16")
    loaded = load(tmp_path / "m.aotpack")
    for training in (True, False):
        model.train(training)
        loaded.train(training)
        with autocast(BF16), torch.set_grad_enabled(training):
            results = [torch.utils._pytree.tree_leaves(which(x)) for which in (loaded, model)]
        torch.testing.assert_close(*results, rtol=0.02, atol=0.02)
        if training:
            for found in results:
                sum(result.float().square().sum() for result in found).backward()
    for (name, found), expected in zip(loaded.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=0.05, atol=0.05, msg=lambda text, name=name: f"{name}: {text}")

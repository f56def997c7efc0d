"""Recurrent layers on XLA: a ``while`` over time, forward and backward, with eager's results and gradients."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FreshProcess
from torch import Tensor, nn

import aotpack
from aotpack._torch.api.recurrent import own_gru
from aotpack_loader import load

from .test_control_flow import assert_alike, kinds
from .test_train import build

STEPS, BATCH, WIDTH = 5, 2, 4


@pytest.fixture(autouse=True)
def eager_gru() -> Iterator[None]:
    """The reference is torch's GRU: torch_xla's, which takes its name, does not run on the CPU."""
    with own_gru():
        yield


class Recurrent(nn.Module):
    """A layer, or several on the same input; all results."""

    def __init__(self, *layers: nn.RNNBase) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, *states: Tensor) -> Any:
        left = iter(states)
        found = []
        for layer in self.layers:
            given = x.transpose(0, 1) if layer.batch_first else x
            if not states:
                found.append(layer(given))
            elif isinstance(layer, nn.LSTM):
                found.append(layer(given, (next(left), next(left))))
            else:
                found.append(layer(given, next(left)))
        return found


def example(model: Recurrent, *, states: bool, steps: int = STEPS) -> tuple[Tensor, ...]:
    """An input, and initial states where they are asked for; all require gradients."""
    draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(1))
    given = [draw(steps, BATCH, WIDTH)]
    for layer in model.layers if states else ():
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        given.append(draw(count, BATCH, layer.proj_size or layer.hidden_size))
        if isinstance(layer, nn.LSTM):
            given.append(draw(count, BATCH, layer.hidden_size))
    return tuple(item.requires_grad_() for item in given)


def every_kind() -> Recurrent:
    torch.manual_seed(0)
    lstm = nn.LSTM(WIDTH, 3, num_layers=2, bidirectional=True, batch_first=True, proj_size=2)
    gru = nn.GRU(WIDTH, 3, bidirectional=True)  # torch's own; torch_xla's has one direction
    return Recurrent(lstm, gru, nn.RNN(WIDTH, 3), nn.RNN(WIDTH, 3, nonlinearity="relu", bias=False))


def test_a_fresh_process_trains_them_as_eager(tmp_path: Path, fresh_process: FreshProcess) -> None:
    """Results, last states, and the gradients of the input, the initial states and all weights."""
    model = every_kind()
    args = example(model, states=True)
    build(model, args, tmp_path / "model.aotpack", methods=("train",))
    results = torch.utils._pytree.tree_leaves(model(*args))
    sum(result.sin().sum() for result in results).backward()
    expected = {f"result {i}": result.detach() for i, result in enumerate(results)}
    expected |= {f"gradient {i}": arg.grad for i, arg in enumerate(args)}
    expected |= {name: parameter.grad for name, parameter in model.named_parameters()}
    torch.save(([arg.detach() for arg in args], expected), tmp_path / "data.pt")
    told = fresh_process(
        """
        import json, sys
        import torch
        from aotpack_loader import load

        model = load(sys.argv[1], backend="xla:cpu")
        args, expected = torch.load(sys.argv[2])
        args = [arg.requires_grad_() for arg in args]
        results = torch.utils._pytree.tree_leaves(model(*args))
        sum(result.sin().sum() for result in results).backward()
        found = [*results, *(arg.grad for arg in args), *(parameter.grad for parameter in model.parameters())]
        wrong = {
            name: (one.cpu() - other).abs().max().item()
            for one, (name, other) in zip(found, expected.items(), strict=True)
            if not torch.allclose(one.cpu(), other, rtol=1e-4, atol=1e-5)
        }
        print(json.dumps({"count": len(found), "wrong": wrong, "compiler": "aotpack" in sys.modules}))
        """,
        tmp_path / "model.aotpack",
        tmp_path / "data.pt",
    )
    assert told == {"count": (3 + 2 + 2 + 2) + (1 + 2 + 3) + (20 + 8 + 4 + 2), "wrong": {}, "compiler": False}


def test_a_program_is_as_large_for_any_number_of_steps(tmp_path: Path) -> None:
    """One ``while`` forward, one backward; in the loops one product each, the others beside them."""
    found = []
    for steps in (3, 50):
        model = Recurrent(nn.LSTM(WIDTH, 3))
        path = build(model, example(model, states=False, steps=steps), tmp_path / str(steps), methods=("train",))
        found.append(kinds(path))
    assert found[0] == found[1]
    assert {key: (many["while"], many["dot_general"]) for key, many in found[0].items()} == {
        "train.forward": (1, 2),
        "train.backward": (1, 4),  # of the hidden state; of the input, and of both weights
    }


def test_dropout_between_layers(tmp_path: Path) -> None:
    model = Recurrent(nn.GRU(WIDTH, 3, num_layers=2, dropout=0.5))
    loaded = load(build(model, example(model, states=False), tmp_path / "model.aotpack"), backend="xla:cpu")
    x = torch.ones(STEPS, BATCH, WIDTH)
    with torch.no_grad():
        expected, there = model.eval()(x), loaded.eval()(x)
    torch.testing.assert_close([item.cpu() for item in there[0]], list(expected[0]))
    once, again = (loaded.train()(x)[0] for _ in range(2))
    torch.testing.assert_close(once[1][0], again[1][0])  # the first layer has none before it
    assert not torch.equal(once[1][1], again[1][1])


class Cast(nn.Module):
    """A layer under autocast. The hidden state of a GRU stays as wide as it begins; those of the others do not.

    torch_xla alone gives float32 for an LSTM. A bundle gives what eager on the CPU gives, on all targets.
    """

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(x)[0]


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="eager has no LSTM in bfloat16 on this processor")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_autocast_inside(kind: type[nn.RNNBase], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Cast(kind(WIDTH, 3)), torch.rand(STEPS, BATCH, WIDTH).requires_grad_()
    loaded = load(build(model, (x,), tmp_path / "model.aotpack", methods=("train",)), backend="xla:cpu")
    there = x.detach().requires_grad_()
    found, expected = loaded(there), model(x)
    torch.testing.assert_close(found.cpu(), expected, rtol=0.02, atol=0.02)  # types too
    for result in (found, expected):
        result.sum().backward()
    torch.testing.assert_close(there.grad.cpu(), x.grad, rtol=0.02, atol=0.02)


def penalised(x: Tensor, weights: Tensor, hidden: Tensor) -> Tensor:
    """Gradients of gradients are taken step by step."""
    rows, _ = torch.gru(x, torch.zeros(1, BATCH, 3), (weights, hidden), False, 1, 0.0, True, False, False)
    (gradient,) = torch.autograd.grad(rows.sin().sum(), x, create_graph=True)
    return gradient.square() + rows.sum()


def test_gradients_of_gradients(tmp_path: Path) -> None:
    args = tuple(torch.rand(shape).requires_grad_() for shape in ((STEPS, BATCH, WIDTH), (9, WIDTH), (9, 3)))
    path = tmp_path / "model.aotpack"
    aotpack.build(penalised, args, out=path, targets=("xla:cpu",), methods=("train",), front_ends=("trace",))
    assert_alike(load(path, backend="xla:cpu"), penalised, args)


def test_steps_that_vary_in_number(tmp_path: Path) -> None:
    """One graph for all; on the CPU it takes any number of steps."""
    model = Recurrent(nn.LSTM(WIDTH, 3, bidirectional=True))
    steps = torch.export.Dim("steps", min=2, max=64)
    options: dict[str, Any] = {"dynamic_shapes": {"x": {0: steps}, "states": ()}, "specializations": [{"steps": 7}]}
    path = tmp_path / "model.aotpack"
    args = example(model, states=False)
    aotpack.build(model, args, out=path, targets=("xla:cpu", "portable"), methods=("train",), **options)
    for count, backend in ((7, "xla:cpu"), (3, "portable")):
        model.zero_grad()
        assert_alike(load(path, backend=backend), model, example(model, states=False, steps=count))


def test_graphs_of_other_builds(tmp_path: Path) -> None:
    """Torch's own trace calls oneDNN's layer where nothing needs a gradient: torch_xla has no kernel for it."""
    model = Recurrent(nn.LSTM(WIDTH, 3, num_layers=2, bidirectional=True))
    args = tuple(arg.detach() for arg in example(model, states=True))
    aotpack.build(model, args, out=tmp_path / "one", targets=("portable",), methods=("infer",))
    aotpack.compile_bundle(tmp_path / "one", targets=("xla:cpu",), out=tmp_path / "both")
    assert [many["while"] for many in kinds(tmp_path / "both").values()] == [4]  # for each layer and direction
    with torch.no_grad():
        loaded = load(tmp_path / "both", backend="xla:cpu").eval()
        found, expected = loaded(*(arg for arg in args)), model.eval()(*args)
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, (found, expected)), strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_rules_tell_equal_arguments_apart(tmp_path: Path) -> None:
    """Operators that were decomposed alike share their fake values; the next rule gets two arguments all the same."""

    def stacked(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([x.squeeze(0), y.squeeze(0)])

    x, y = torch.rand(1, 3), torch.rand(1, 3)
    aotpack.build(stacked, (x, y), out=tmp_path / "one", targets=("portable",), methods=("infer",))
    aotpack.compile_bundle(tmp_path / "one", targets=("xla:cpu",), out=tmp_path / "both")
    found = load(tmp_path / "both", backend="xla:cpu").eval()(x, y)
    assert torch.equal(found.cpu(), stacked(x, y))

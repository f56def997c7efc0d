"""Layers that nobody has marked: XLA's module holds one computation for them, and computes what it computed before."""

from __future__ import annotations

import copy
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from aotpack.targets.aoti.parts import without_calls
from aotpack.targets.nested import CALL
from aotpack.targets.xla.lower import lower
from aotpack.targets.xla.normalise import normalise
from aotpack.targets.xla.repeats import call_repeats
from aotpack.targets.xla.stablehlo import hlo
from aotpack_loader import load
from aotpack_loader.archive.bundle import Bundle

from . import models
from .test_regions import numbers, opcodes
from .test_train import build

ROWS, WIDTH = 4, 8
X, WEIGHT = (ROWS, WIDTH), (WIDTH, WIDTH)

Weights = Sequence[Tensor]


def layer(x: Tensor, weight: Tensor) -> Tensor:
    """About a dozen nodes; a few more in the backward."""
    h = F.layer_norm(x, (WIDTH,)) @ weight
    low, high = h.exp().split(WIDTH // 2, 1)
    return x + torch.cat([high.sin(), low.cos()], 1) @ weight.t()


def in_a_row(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = layer(x, weight)
    return x


def from_two_before(x: Tensor, *weights: Tensor) -> Tensor:
    """The first takes its input twice: nothing is in the place of what is two layers before."""
    before = x
    for weight in weights:
        before, x = x, layer(x, weight) + before.sin().mean()
    return x


def joined_at_the_end(x: Tensor, *weights: Tensor) -> Tensor:
    """Each layer has another from the way down, which lies further and further back."""
    down = []
    for weight in weights:
        x = layer(x, weight)
        down.append(x)
    for weight, other in zip(weights, reversed(down), strict=True):
        x = layer(x * other, weight)
    return x


def with_something_shared(x: Tensor, *weights: Tensor) -> Tensor:
    """Made in the first layer, used in all."""
    shared = None
    for weight in weights:
        x = layer(x, weight)
        shared = x.sum(0).sin() if shared is None else shared
        x = x * shared
    return x


def of_two_sizes(x: Tensor, *weights: Tensor) -> Tensor:
    x = in_a_row(x, *weights)
    return in_a_row(torch.cat([x, x]), *weights)


def with_one_that_differs(x: Tensor, *weights: Tensor) -> Tensor:
    """In the middle a layer with another constant."""
    half = len(weights) // 2
    return in_a_row(in_a_row(x, *weights[:half]).add(3).clamp(-5, 7), *weights[half:])


def all_returned(x: Tensor, *weights: Tensor) -> list[Tensor]:
    return [x := layer(x, weight) for weight in weights]


def gradients(function: Callable[..., Tensor], x: Tensor, *weights: Tensor) -> list[Tensor]:
    """What a function returns, and the gradients of the sum of its squares."""
    with torch.enable_grad():
        leaves = [value.detach().requires_grad_() for value in (x, *weights)]
        result = function(*leaves)
        return [result, *torch.autograd.grad(result.square().sum(), leaves)]


def traced(function: Callable[..., object], layers: int) -> GraphModule:
    """The normalised graph of a function of an activation and a weight for each layer."""
    with FakeTensorMode():
        return normalise(make_fx(function)(torch.empty(X), *[torch.empty(WEIGHT) for _ in range(layers)]))


def called(module: GraphModule) -> GraphModule:
    """The same graph with calls of what repeats in it."""
    module = copy.deepcopy(module)
    call_repeats(module)
    return module


def test_nodes_that_are_alike_are_decomposed_in_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five products are of four kinds: another constant, another shape and one argument twice are kinds of their own."""
    from aotpack.targets.xla import normalise as module

    def products(x: Tensor) -> list[Tensor]:
        y, z = x + 1, x + 2
        first = torch.addcmul(x, y, z, value=3)
        others = [torch.addcmul(x, y, z, value=0.5), torch.addcmul(x[:2], y[:2], z[:2], value=3), torch.addcmul(x, y, y, value=3)]
        return [torch.addcmul(first, z, y, value=3), *others]

    traces = []
    trace = module.trace
    monkeypatch.setattr(module, "trace", lambda *args: traces.append(args) or trace(*args))
    with FakeTensorMode():
        normalised = normalise(make_fx(products)(torch.empty(X)))
    assert len(traces) == 4
    x = torch.randn(X)
    for found, expected in zip(normalised(x), products(x), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("function", "copies"),
    [
        (in_a_row, 2),
        (from_two_before, 3),
        (joined_at_the_end, 4),
        (with_something_shared, 3),
        (of_two_sizes, 4),
        (with_one_that_differs, 4),
    ],
)
def test_calls_compute_what_the_nodes_did(function: Callable[..., Tensor], copies: int) -> None:
    for whole in (function, partial(gradients, function)):
        plain = traced(lambda *args, whole=whole: whole(*args), 24)
        shorter = called(plain)
        shorter.graph.lint()
        assert _exponentials(shorter) <= copies < 24 <= _exponentials(plain)
        given = [value / 4 for value in numbers(plain)]
        for found, wanted in zip(_results(without_calls(shorter), given), _results(plain, given), strict=True):
            assert torch.equal(found, wanted)


def _exponentials(module: GraphModule) -> int:
    """One for each layer in a graph, of those that it calls one for each region."""
    graphs = [inner.graph for inner in module.modules() if isinstance(inner, GraphModule)]
    return sum(len(graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default)) for graph in graphs)


def _results(module: GraphModule, given: Sequence[Tensor]) -> list[Tensor]:
    result = module(*given)
    return [result] if isinstance(result, Tensor) else list(result)


def test_what_does_not_pay_is_left_alone() -> None:
    """Two layers; and layers of few nodes."""
    few = traced(in_a_row, 2)
    small = traced(lambda x, *weights: [x := (x @ weight).relu() for weight in weights], 6)
    for module in (few, small):
        assert called(module).graph.find_nodes(op="call_function", target=CALL) == []


def test_48_plain_layers_are_not_48_copies() -> None:
    """What computes is there once; each layer adds its calls, and the parameters and results of those."""
    sizes = {}
    for layers in (4, 48):
        plain = traced(lambda *args: gradients(in_a_row, *args), layers)
        programs = [lower(module, "train.forward", frozenset()).stablehlo for module in (plain, called(plain))]
        sizes[layers] = programs[1]
        copies = programs[0]
    few, many = sizes[4], sizes[48]
    assert few is not None
    assert many is not None
    assert copies is not None
    assert opcodes(many)["dot_general"] <= opcodes(few)["dot_general"] <= 2 * 6
    assert opcodes(copies)["dot_general"] == 48 * 6
    for form in (hlo, bytes):
        stored = [len(zlib.compress(form(program))) for program in (few, many, copies)]
        assert stored[1] < 4 * stored[0]
        assert stored[1] < stored[2] / 1.8
    assert len(hlo(many)) < len(hlo(copies)) / 3


def of_bundle(path: Path, graph: str) -> Counter[str]:
    """How many operations of each kind the program of a graph has."""
    bundle = Bundle.open(path)
    program = bundle.targets["xla:cpu"].xla[graph].stablehlo
    assert program is not None
    return opcodes(bundle.module(program))


def test_a_plain_model_trains_as_on_the_cpu(tmp_path: Path) -> None:
    blocks = 5
    model, args = models.gpt()
    model.blocks = nn.Sequential(*[models.Block(32, 4, 0.0) for _ in range(blocks)])
    out = build(copy.deepcopy(model), args, tmp_path / "model.aotpack", methods=("train",))
    for half, products in (("forward", 6), ("backward", 12)):
        found = of_bundle(out, f"train.{half}")
        assert found["dot_general"] <= 2 * products + 2  # at most one block beside the one that is called, and the output layer
        assert found["part"] >= blocks - 1
    loaded = load(out, backend="xla:cpu")
    for module, given in ((model, args), (loaded, args)):
        module(*given)[0].backward()
    for expected, found in zip(model.parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(found.grad.cpu(), expected.grad)


class Dropping(nn.Module):
    """Layers with dropout; its result has all masks in it, one after the other."""

    def __init__(self, *, recomputed: bool) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(WEIGHT, dtype=torch.float64) / 4) for _ in range(6)])
        self.recomputed = recomputed

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        masks = []
        for weight in self.weights:
            if self.recomputed:
                x, mask = checkpoint(self._layer, x, weight, use_reentrant=False)
            else:
                x, mask = self._layer(x, weight)
            masks.append(mask)
        return x, torch.stack(masks)

    def _layer(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.sigmoid(layer(layer(x, weight), weight))
        dropped = F.dropout(h, 0.5, self.training)
        return x + (dropped @ weight).sin(), (dropped / h).detach()


@pytest.mark.parametrize("recomputed", [False, True])
def test_layers_draw_differently_and_a_backward_draws_what_its_forward_drew(recomputed: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, direction = torch.randn(200, WIDTH, dtype=torch.float64), torch.randn(200, WIDTH, dtype=torch.float64)
    out = build(Dropping(recomputed=recomputed), (x.requires_grad_(),), tmp_path / "model.aotpack", methods=("train",))
    assert of_bundle(out, "train.forward")["part"] >= 5
    assert of_bundle(out, "train.backward")["part"] >= 4
    loaded = load(out, backend="xla:cpu")

    def at(step: float) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(5)
        there = (x.detach() + step * direction).requires_grad_()
        result, masks = loaded(there)
        result.sum().backward()
        return result.detach().cpu().sum(), masks.cpu() != 0, there.grad.cpu()

    _, masks, gradient = at(0)
    before, after = at(-1e-5), at(1e-5)
    assert torch.equal(before[1], masks)
    slope = (after[0] - before[0]) / 2e-5
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-4, atol=1e-4)
    for i, mask in enumerate(masks):
        assert abs(mask.double().mean().item() - 0.5) < 0.0625  # 1,600 draws: five standard deviations
        for other in masks[:i]:
            assert abs((mask == other).double().mean().item() - 0.5) < 0.0625

"""Nested compile regions on XLA: one computation for each, which is called, however many layers there are."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import aotpack
from aotpack.targets.aoti.parts import without_calls
from aotpack.targets.xla.check import problems
from aotpack.targets.xla.lower import Lowered, lower
from aotpack.targets.xla.normalise import normalise
from aotpack.targets.xla.stablehlo import hlo
from aotpack_loader import load

from .programs import executable, opcodes

VECTOR = Path(__file__).parents[2] / "spec/vectors/v1/valid/regions"
ROWS, WIDTH = 4, 8
X, WEIGHT = (ROWS, WIDTH), (WIDTH, WIDTH)

Function = Callable[..., list[torch.Tensor]]


def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
    """A layer as the forward half of a region has it: its result, and what it saves."""
    product = F.layer_norm(x, (WIDTH,)) @ weight + bias
    return [x + F.gelu(product), product]


def layer_backward(gradient: torch.Tensor, product: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of what the layer is given (past its norm)."""
    of_product = torch.ops.aten.gelu_backward(gradient, product)
    return [gradient + of_product @ weight.t(), of_product.sum(0)]


def dropped(x: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
    return [x, torch.native_dropout(x, 0.5, True)[0] + 0 * other]


def chain(calls: int, function: Function, *shapes: tuple[int, ...]) -> GraphModule:
    """A graph that calls ``function`` as one region, as the graphs of a bundle do.

    Each call gets the first result of the one before, and inputs of the graph; all results are returned.
    """
    with FakeTensorMode():
        examples = [torch.empty(shape) for shape in shapes]
        region = make_fx(function)(*examples)
    results = tuple(node.meta["val"] for node in region.graph.output_node().args[0])  # type: ignore[union-attr]
    root, graph = torch.nn.Module(), Graph()
    root.register_module("region", region)
    arguments = [[graph.placeholder(f"input_{n}_{i}") for i in range(n > 0, len(shapes))] for n in range(calls)]
    for given in arguments:
        for node, value in zip(given, examples[-len(given) :], strict=True):
            node.meta["val"] = value
    returned: list[torch.fx.Node] = []
    carried: list[torch.fx.Node] = []
    for given in arguments:
        call = graph.call_function(torch.ops.higher_order.invoke_subgraph, (graph.get_attr("region"), "layer", *carried, *given))
        call.meta["val"] = results
        items = [graph.call_function(operator.getitem, (call, i)) for i in range(len(results))]
        for item, value in zip(items, results, strict=True):
            item.meta["val"] = value
        carried = items[:1]
        returned += items
    graph.output(tuple(returned))
    return GraphModule(root, graph)


def lowered(module: GraphModule) -> Lowered:
    normalised = normalise(module)
    assert list(problems(normalised, "train.forward")) == []
    return lower(normalised, "train.forward", frozenset())


def numbers(module: GraphModule) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(node.meta["val"].shape, generator=draw) for node in module.graph.find_nodes(op="placeholder")]


HALVES = [(layer, (X, WEIGHT, (WIDTH,))), (layer_backward, (X, X, WEIGHT))]


@pytest.mark.parametrize(("function", "shapes"), HALVES)
def test_48_layers_are_not_48_copies(function: Function, shapes: tuple[tuple[int, ...], ...]) -> None:
    """What computes is there once; each layer adds its call, and the parameters and results of that."""
    few, many = (lowered(chain(calls, function, *shapes)).stablehlo for calls in (4, 48))
    copies = lowered(without_calls(chain(48, function, *shapes))).stablehlo
    assert few is not None
    assert many is not None
    assert copies is not None
    computing = [{kind: n for kind, n in opcodes(program).items() if kind != "part"} for program in (few, many)]
    assert computing[0] == computing[1]
    assert computing[0]["dot_general"] == 1
    assert opcodes(copies)["dot_general"] == 48
    assert opcodes(many)["part"] == 48
    assert len(many) < len(copies) / 1.5
    assert len(hlo(many)) < len(hlo(copies)) / 2


@pytest.mark.parametrize(("function", "shapes"), HALVES)
def test_another_implementation_takes_the_calls(function: Function, shapes: tuple[tuple[int, ...], ...]) -> None:
    from .test_judge import run

    module = chain(3, function, *shapes)
    found, given = lowered(module), numbers(module)
    assert found.stablehlo is not None
    results = run(found.stablehlo, [given[p.input or 0].numpy() for p in found.parameters])
    for place, expected in zip(found.outputs, without_calls(module)(*given), strict=True):
        assert isinstance(place, int)
        torch.testing.assert_close(results[place], expected)


def test_a_bundle_with_regions_trains(tmp_path: Path) -> None:
    """Built with torch 2.13, whose Dynamo keeps regions: a frozen vector of the format."""
    aotpack.compile_bundle(VECTOR / "bundle.aotpack", targets=("xla:cpu",), out=tmp_path / "model.aotpack")
    expected = load_file(VECTOR / "expect.safetensors")
    told = json.loads((VECTOR / "expect.json").read_text())
    loaded = load(tmp_path / "model.aotpack", backend="xla:cpu", trust="all")
    prefix = next(call["prefix"] for call in told["calls"] if call["training"] and call["grad"])
    x = expected[f"{prefix}.input.0"].requires_grad_()
    result = loaded(x)
    result.backward(torch.ones_like(result))
    torch.testing.assert_close(result.cpu(), expected[f"{prefix}.result.0"])
    torch.testing.assert_close(x.grad.cpu(), expected[f"{prefix}.input_gradient.0"])
    for name, parameter in loaded.named_parameters():
        torch.testing.assert_close(parameter.grad.cpu(), expected[f"{prefix}.gradient.{name}"])


def test_calls_of_a_region_draw_differently() -> None:
    shape = (100, 100)
    found = lowered(chain(2, dropped, shape, shape))
    assert found.stablehlo is not None
    assert [p.input for p in found.parameters].count(None) == 1  # one seed for all calls
    run = executable(found)
    torch.manual_seed(3)
    runs = []
    for _ in range(2):
        _, first, _, second = run([torch.ones(shape) for _ in range(3)])
        kept = [(mask.cpu() != 0).float() for mask in (first, second)]
        for mask in kept:
            assert abs(mask.mean().item() - 0.5) < 0.025  # five standard deviations of 10,000 draws
        assert abs((kept[0] == kept[1]).float().mean().item() - 0.5) < 0.025
        runs.append(first.cpu())
    assert not torch.equal(*runs)
    torch.manual_seed(3)
    _, again, *_ = run([torch.ones(shape) for _ in range(3)])
    assert torch.equal(runs[0], again.cpu())


def test_calls_in_any_number_may_draw() -> None:
    found = lowered(chain(30, dropped, X, X))
    assert [parameter.input for parameter in found.parameters].count(None) == 1


def test_what_a_region_may_not_hold_is_refused() -> None:
    module = chain(2, lambda x, y: [torch.special.bessel_j0(x) + y], X, X)
    region = module.region
    assert isinstance(region, GraphModule)
    node = region.graph.find_nodes(op="call_function", target=torch.ops.aten.special_bessel_j0.default)[0]
    node.meta["val"] = 3
    (problem,) = problems(normalise(module), "train.forward")
    assert "bessel_j0" in problem.message

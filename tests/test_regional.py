"""Regional compilation: repeated layers are compiled once, and act as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from support.releases import TORCH
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.utils.checkpoint import checkpoint

import aotpack
from aotpack.capture.regions import repeated_layers
from aotpack.pipeline.classes import with_regions
from aotpack.pipeline.context import Example, begin
from aotpack.pipeline.options import Options
from aotpack.pipeline.progress import BuildReport, Run
from aotpack.targets import find_targets
from aotpack.targets.aoti.parts import compute_late
from aotpack.tools.cli import main
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices.aoti import AotiSequence
from aotpack_loader.errors import AutogradError
from aotpack_loader.opening.from_record import RecordedCall


class Layer(nn.Module):
    """A residual layer with an activation of its own."""

    def __init__(self, activation: Callable[[], nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.linear, self.activation = nn.Linear(4, 4), activation()

    def forward(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor | None]:
        return x + self.activation(self.linear(x)) * scale, None


class Normalised(Layer):
    """Writes to its buffers in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor | None]:
        return self.norm(super().forward(x, scale)[0]), None


class Deep(nn.Module):
    """Layers one after the other."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x, _ = layer(x, scale=0.5)
        return x


def built(model: nn.Module, out: Path) -> BuildReport:
    """Build with regions, and compare two steps and an evaluation with eager."""
    torch.manual_seed(0)
    eager, x = copy.deepcopy(model), torch.randn(3, 4)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    report = aotpack.build(model, (x,), out=out, targets=("portable",), regional=True)
    assert all(vars(module).keys() == before[name].keys() for name, module in model.named_modules())
    loaded = aotpack.load(out)
    for one in (eager, loaded):
        one.train()
    for _ in range(2):
        y = torch.randn(3, 4)
        expected, result = eager(y), loaded(y)
        torch.testing.assert_close(result, expected)
        expected.sum().backward()
        result.sum().backward()
    for (name, one), other in zip(eager.named_parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, msg=name)
    for (name, value), other in zip(eager.named_buffers(), loaded.buffers(), strict=True):
        torch.testing.assert_close(other, value, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(x), eager.eval()(x))
    return report


def regions(path: Path) -> tuple[int, int]:
    """How many regions the training graphs have, forward and backward."""
    with Bundle.open(path) as bundle:
        method = bundle.program.methods["train"]
        assert method.backward is not None
        return len(bundle.graph(method.forward).subgraphs), len(bundle.graph(method.backward.graph).subgraphs)


def test_layers_of_one_kind_are_one_region(tmp_path: Path) -> None:
    found = []
    for count in (4, 12):
        report = built(Deep([Layer() for _ in range(count)]), tmp_path / "m.aotpack")
        assert f"'train': {count} repeated layers are regions, each compiled once" in report.notes
        assert not report.warnings
        found.append(regions(tmp_path / "m.aotpack"))
    assert found[0] == found[1]
    assert found[0][0] == 1


def test_layers_with_other_submodules_are_other_regions(tmp_path: Path) -> None:
    """The first layer's input needs no gradient, so it has a backward of its own.

    A region that is called once is none from torch 2.13 on: the first layer and the one of ``Sigmoid``.
    """
    kinds = [nn.Tanh, nn.Tanh, nn.Sigmoid, nn.ReLU, nn.Tanh, nn.ReLU]
    report = built(Deep([Layer(kind) for kind in kinds]), tmp_path / "m.aotpack")
    assert not report.warnings
    assert regions(tmp_path / "m.aotpack") == ((2, 2) if TORCH >= (2, 13) else (3, 4))


def test_layers_that_torch_takes_for_no_regions(tmp_path: Path) -> None:
    """torch's regions may not write to buffers in training."""
    report = built(Deep([Normalised() for _ in range(3)]), tmp_path / "m.aotpack")
    (warning,) = report.warnings
    assert warning.startswith("layers are not compiled once: ")
    assert "buffer mutations" in warning
    assert "captured 'train' with the dynamo front end" in report.notes
    assert regions(tmp_path / "m.aotpack") == (0, 0)


def test_eagers_random_numbers_are_drawn_outside_of_regions(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(3)])
    x, out = torch.randn(3, 4), tmp_path / "m.aotpack"
    report = aotpack.build(model, (x,), out=out, targets=("portable",), regional=True, rng="eager", methods=("train",))
    (warning,) = report.warnings
    assert warning.startswith("layers are not compiled once: the layers draw random numbers")
    loaded = aotpack.load(out)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    torch.testing.assert_close(loaded(x), expected)


def test_the_command_names_its_own_options(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def model():\n    return nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(3)])\n"
        "def example_inputs():\n    return (torch.zeros(3, 4),)\n"
    )
    words = ["build", str(tmp_path / "model.py"), "-o", str(tmp_path / "m"), "--target", "portable", "--method", "train"]
    result = CliRunner().invoke(main, [*words, "--regional", "--rng", "eager"])
    assert result.exit_code == 0, result.output
    assert "the layers draw random numbers, which --rng eager allows only outside of regions" in result.output


def test_layers_of_deep_models_are_compiled_once_by_default() -> None:
    def layers(count: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
        return nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), activation()) for _ in range(count)])

    by_default = Options(out="")
    for model, options, target, expected in (
        (layers(12), by_default, "cpu", None),
        (layers(12), replace(by_default, regional=True), "cpu", True),
        (layers(12), replace(by_default, regional=False), "cpu", False),
        (layers(11), by_default, "cpu", False),
        (layers(12), by_default, "portable", False),
        (layers(12, lambda: nn.BatchNorm1d(4)), by_default, "cpu", False),
        (layers(12), replace(by_default, rng="eager"), "cpu", False),
        (layers(12), replace(by_default, memory_budget=0.5), "cpu", False),
    ):
        targets = find_targets(target)
        context = begin(Run(), Example(model, (torch.zeros(2, 4),), {}, None), options)
        assert with_regions(context, targets).options.regional is expected


class Checkpointed(Deep):
    """Computes each layer again in the backward."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: layer(x)[0], x, use_reentrant=False)
        return x


def test_layers_in_checkpoints_are_no_regions(tmp_path: Path) -> None:
    """Regions would all be computed again before the first gradient of a layer, and be kept until then."""
    model, x, saved = Checkpointed([Layer(nn.Tanh) for _ in range(3)]), torch.randn(64, 4), []
    for regional in (False, True):
        report = aotpack.build(model, (x,), out=tmp_path / "m", methods=("train",), targets=("portable",), regional=regional)
        saved.append(report.saved_bytes["train"])
    assert saved[0] == saved[1]
    (warning,) = report.warnings
    assert warning.startswith("layers are not compiled once: a checkpoint around layers")


def test_what_regions_save(tmp_path: Path) -> None:
    """The fake results of all calls of a region share storages, and count each."""
    model, x = Deep([Layer(nn.Tanh) for _ in range(4)]), torch.randn(64, 4)
    saved = [
        aotpack.build(model, (x,), out=tmp_path / "m", methods=("train",), targets=("portable",), regional=regional).saved_bytes[
            "train"
        ]
        for regional in (False, True)
    ]
    assert saved == [7 * x.nbytes, 7 * x.nbytes]  # the inputs of three layers, and the results of four functions


def test_second_derivatives_are_traced_without_regions(tmp_path: Path) -> None:
    model, x = Deep([Layer(nn.Tanh) for _ in range(3)]), torch.randn(3, 4, requires_grad=True)
    out = tmp_path / "m.aotpack"
    report = aotpack.build(
        model, (x,), out=out, targets=("portable",), regional=True, second_derivatives=True, methods=("train",)
    )
    assert not report.warnings
    grads = []
    for one in (model, aotpack.load(out)):
        (gradient,) = torch.autograd.grad(one(x).square().sum(), x, create_graph=True)
        grads.append(torch.autograd.grad(gradient.square().sum(), [x, *one.parameters()], allow_unused=True))
    torch.testing.assert_close(grads[1], grads[0])


class Tied(nn.Module):
    """Layers between an embedding and an output layer with its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.layers = nn.ModuleList([Layer(nn.Tanh) for _ in range(3)])

    def forward(self, rows: Tensor) -> Tensor:
        x = self.table(rows)
        for layer in self.layers:
            x, _ = layer(x)
        return (x @ self.table.weight.t()).sin()


def _compare(loaded: Any, model: nn.Module, batches: Sequence[int]) -> None:
    """Compare steps with eager's."""
    for seed, batch in enumerate(batches):
        rows = torch.randint(7, (batch,), generator=torch.Generator().manual_seed(seed))
        for module in (model, loaded):
            module.zero_grad()
            module(rows).square().sum().backward()
        for mine, eagers in zip(loaded.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, eagers.grad)


def test_native_code_runs_the_parts_of_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call library runs them, from the documents and from a record, for each size of the batch."""
    model, out = Tied(), tmp_path / "m"
    dynamic = ({0: torch.export.Dim("batch", min=2, max=64)},)
    rows = torch.zeros(5, dtype=torch.int64)
    aotpack.build(model, (rows,), out=out, targets=("cpu",), methods=("train",), dynamic_shapes=dynamic, regional=True)
    monkeypatch.setenv("AOTPACK_RECORDED_STARTS", "1")
    monkeypatch.setenv("AOTPACK_CACHE", str(tmp_path / "cache"))
    with monkeypatch.context() as forbidden:
        forbidden.setattr(AotiSequence, "__call__", lambda *_: pytest.fail("Python ran the parts"))
        for recorded in (False, True):
            loaded = aotpack.load(out, backend="cpu")
            assert all(isinstance(call, RecordedCall) for call in loaded._aotpack_calls.values()) is recorded
            assert loaded.aotpack.calls == {"train": "native"}
            _compare(loaded, model, (5, 3, 5))
        result, parameters = loaded(rows), list(loaded.parameters())
        negated = torch.autograd.grad(result, parameters, torch._neg_view(torch.ones(5, 7)), retain_graph=True)
        torch.testing.assert_close(negated, torch.autograd.grad(result, parameters, -torch.ones(5, 7), retain_graph=True))
        with pytest.raises(AutogradError, match="one gradient at a time"):
            torch.autograd.grad(result, parameters, torch.ones(2, 5, 7), is_grads_batched=True)
    monkeypatch.setenv("AOTPACK_NATIVE_CALL", "0")
    _compare(aotpack.load(out, backend="cpu"), model, (5, 3))


def test_large_values_are_computed_where_they_are_used() -> None:
    """A product that is larger than its operands moves to its only user after a call, with the views that it reads."""
    graph = Graph()

    def node(target: Any, args: tuple[Any, ...], value: Tensor) -> Node:
        made = graph.call_function(target, args)
        made.meta["val"] = value
        return made

    aten, call = torch.ops.aten, torch.ops.higher_order.invoke_subgraph
    x = graph.placeholder("x")
    x.meta["val"] = torch.zeros(8, 1)
    turned = node(aten.t.default, (x,), torch.zeros(1, 8))
    large = node(aten.mm.default, (x, turned), torch.zeros(8, 8))
    small = node(aten.mm.default, (turned, x), torch.zeros(1, 1))
    drawn = node(aten.rand.default, ([9, 9],), torch.zeros(9, 9))
    for _ in range(2):
        node(call, (graph.get_attr("region"), None, x), torch.zeros(8, 1))
    used = [node(aten.sin.default, (each,), each.meta["val"]) for each in (large, small, drawn)]
    graph.output(tuple(used))
    compute_late(graph)
    names = [each.name for each in graph.nodes]
    assert names.index(small.name) < names.index(drawn.name) < names.index("invoke_subgraph")
    assert names.index(large.name) == names.index(used[0].name) - 1


def test_without_repeated_layers(tmp_path: Path) -> None:
    report = built(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), tmp_path / "m.aotpack")
    (warning,) = report.warnings
    assert warning.startswith("layers are not compiled once: no ModuleList or Sequential")


def test_a_call_that_changes_what_a_layer_is(tmp_path: Path) -> None:
    """A forward of an instance's own is traced, and is there afterwards."""
    model = Deep([Layer() for _ in range(3)])
    model.layers[1].forward = lambda x, scale: (x * scale, None)  # type: ignore[method-assign]
    aotpack.build(model, (torch.randn(3, 4),), out=tmp_path / "m.aotpack", targets=("portable",), regional=True)
    loaded, x = aotpack.load(tmp_path / "m.aotpack"), torch.randn(3, 4)
    torch.testing.assert_close(loaded(x), model(x))


class Stage(nn.Module):
    """A stage of layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2)])


def test_which_layers_are_repeated() -> None:
    same = nn.ModuleList([Stage(4), Stage(4)])
    assert repeated_layers(same) == list(same)
    other = nn.ModuleList([Stage(4), Stage(5)])
    assert repeated_layers(other) == [layer for stage in other for layer in stage.layers]
    assert repeated_layers(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []

"""Regional compilation: repeated layers are compiled once, and act as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from click.testing import CliRunner
from support.releases import TORCH
from torch import Tensor, nn

import aotpack
from aotpack.capture.regions import repeated_layers
from aotpack.cli import main
from aotpack.pipeline.advice import before_tracing
from aotpack.pipeline.options import Options
from aotpack.pipeline.progress import BuildReport, Run
from aotpack.targets import resolve_targets
from aotpack_loader.archive.bundle import Bundle


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


def test_deep_models_are_told_of_the_option() -> None:
    deep = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(12)])
    said = []
    for model, options, target in (
        (deep, Options(), "cpu"),
        (deep, Options(), "portable"),
        (deep, Options(regional=True), "cpu"),
        (deep[:11], Options(), "cpu"),
    ):
        run = Run()
        before_tracing(run, model, options, resolve_targets([target]))
        said.append(run.notes)
    assert said == [["the model repeats 12 layers: with regional=True each kind of layer is compiled once"], [], [], []]


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

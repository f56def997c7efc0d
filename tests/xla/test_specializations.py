"""Several sets of sizes in one bundle, each with computations of its own, picked by the sizes of a call."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from msgspec import structs
from torch.export import Dim

import aotpack
from aotpack.tools.cli import main
from aotpack_loader import load
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.manifests import check_references
from aotpack_loader.errors import BuildError, CorruptBundleError, InputError

from . import models
from .test_train import build

BATCHES = [{"batch": 4}, {"batch": 6}]


def shapes() -> dict[str, object]:
    batch = Dim("batch", min=2, max=64)
    return {"x": {0: batch}, "labels": {0: batch}}


def example(batch: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 3, 12, 12), torch.randint(0, 10, (batch,))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolutional network for two sizes of its batch, and its portable graphs for all."""
    out = tmp_path_factory.mktemp("specialized") / "model.aotpack"
    model, args = models.cnn()
    options = {"front_ends": ("export",), "dynamic_shapes": shapes(), "specializations": BATCHES}
    aotpack.build(model, args, out=out, targets=("xla:cpu", "portable"), **options)  # type: ignore[arg-type]
    return out


def test_the_sizes_of_a_call_pick_the_code(path: Path) -> None:
    """Losses, gradients and running statistics are eager's at both sizes."""
    model, _ = models.cnn()
    loaded = load(path, backend="xla:cpu")
    for batch in (4, 6, 4, 6):
        args = example(batch)
        one = torch.ones(())
        model.zero_grad()
        loaded.zero_grad()
        expected, found = model(*args), loaded(*args)
        expected.backward()
        found.backward(one)
        torch.testing.assert_close(found.cpu(), expected)
        for parameter, other in zip(model.parameters(), loaded.parameters(), strict=True):
            torch.testing.assert_close(other.grad.cpu(), parameter.grad, rtol=1e-4, atol=1e-5)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(loaded.get_buffer(name).cpu(), buffer)


def test_other_sizes_are_refused_with_those_there_are(path: Path) -> None:  # X4
    loaded = load(path, backend="xla:cpu")
    before = {name: value.cpu().clone() for name, value in loaded.state_dict().items()}
    with pytest.raises(InputError, match=r"no code for batch=5 on this device; 'train' has it for:(?s:.*)batch=4(?s:.*)batch=6"):
        loaded(*(arg for arg in example(5)))
    for name, value in loaded.state_dict().items():
        torch.testing.assert_close(value.cpu(), before[name])
    with pytest.raises(InputError, match=r"2\.\.64"):
        loaded(*(arg for arg in example(65)))
    args = example(5)
    torch.testing.assert_close(load(path, device="cpu")(*args), models.cnn()[0](*args))


def test_forward_and_backward_of_one_size_belong_together(path: Path) -> None:
    """Calls of two sizes may be in flight at once."""
    model, _ = models.cnn()
    loaded = load(path, backend="xla:cpu").eval().train()
    first, second = example(4), example(6)
    for module in (model, loaded):
        losses = [module(*args) for args in (first, second)]
        losses[0].backward()
        losses[1].backward()
    for parameter, other in zip(model.parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), parameter.grad, rtol=1e-4, atol=1e-5)


class Shapes(torch.nn.Module):
    """Computes with sizes themselves, and returns some."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        rows, columns = x.shape
        scaled = x.reshape(columns, rows).repeat(2, 1)[: columns + 1] * (rows * columns) / rows**0.5
        return scaled.sum() + y.new_ones(y.shape[0] * 2).sum(), x.flatten(), rows + columns


def test_computing_with_sizes(tmp_path: Path) -> None:
    model, rows, columns = Shapes(), Dim("rows", min=2, max=9), Dim("columns", min=2, max=9)
    path = build(
        model,
        (torch.randn(3, 4, requires_grad=True), torch.randn(4)),
        tmp_path / "model.aotpack",
        dynamic_shapes=({0: rows, 1: columns}, {0: columns}),
        specializations=[{"rows": 3, "columns": 4}, {"rows": 4, "columns": 3}, {"columns": 3, "rows": 4}],
    )
    sizes = [sorted(code.sizes.values()) for code in Bundle.open(path).targets["xla:cpu"].specializations["train"]]
    assert sizes == [[3, 4], [3, 4]]  # the third is the second
    loaded = load(path, backend="xla:cpu")
    for sizes in ((3, 4), (4, 3)):
        x, y = torch.randn(*sizes).requires_grad_(), torch.randn(sizes[1])
        there = x.detach().requires_grad_()
        expected, found = model(x, y), loaded(there, y)
        assert found[2] == expected[2] == 7
        for results in (expected, found):
            (results[0] * 2 + results[1].sum()).backward()
        torch.testing.assert_close([value.cpu() for value in found[:2]], list(expected[:2]))
        torch.testing.assert_close(there.grad.cpu(), x.grad)


def test_added_to_a_bundle_of_other_targets(tmp_path: Path) -> None:
    model, (x, labels) = models.mlp()
    first, second = tmp_path / "portable.aotpack", tmp_path / "both.aotpack"
    batch = Dim("batch", min=2, max=64)
    shapes = {"x": {0: batch}, "labels": {0: batch}}
    options = {"front_ends": ("export",), "dynamic_shapes": shapes}
    aotpack.build(copy.deepcopy(model), (x, labels), out=first, targets=("portable",), **options)  # type: ignore[arg-type]
    with pytest.raises(BuildError, match=r"batch varies from call to call\.\n.*--specialize batch=8"):
        aotpack.compile_bundle(first, targets=("xla:cpu",), out=second)
    aotpack.compile_bundle(first, targets=("xla:cpu",), out=second, specializations=[{"batch": 5}])
    loaded = load(second, backend="xla:cpu")
    expected, found = model(x[:5], labels[:5]), loaded(x[:5], labels[:5])
    expected.backward()
    found.backward()
    torch.testing.assert_close(found.cpu(), expected)
    for parameter, other in zip(model.parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), parameter.grad)


def test_what_fixed_sizes_still_cannot_compute_is_refused_with_its_line(tmp_path: Path) -> None:
    class OnTheCpu(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x)

    batch = Dim("batch", min=2, max=64)
    with pytest.raises(BuildError, match=r"test_specializations\.py.*bessel_j0.* has no rule for XLA"):
        build(
            OnTheCpu(),
            (torch.randn(4),),
            tmp_path / "model.aotpack",
            dynamic_shapes=({0: batch},),
            specializations=[{"batch": 4}],
        )


def test_the_code_for_all_sizes_is_in_the_manifest(path: Path) -> None:
    """A manifest that lacks some of it is refused when the bundle is opened."""
    bundle = Bundle.open(path)
    found = bundle.manifests["xla:cpu"]
    blob = found.target.specializations["train"][1].forward.code
    assert blob is not None
    assert blob in found.manifest.layers
    fewer = [layer for layer in found.manifest.layers if layer != blob]
    with pytest.raises(CorruptBundleError, match=r"target\.specializations\['train'\]\[1\]\.forward\.code(?s:.*)is not a layer"):
        check_references(structs.replace(found, manifest=structs.replace(found.manifest, layers=fewer)))


def test_inspect_tells_the_sizes(path: Path) -> None:
    shown = " ".join(CliRunner().invoke(main, ["inspect", str(path)], env={"COLUMNS": "250"}).output.split())
    assert "2 <= batch <= 64" in shown
    assert "batch=4 or batch=6" in shown


def test_compiled_code_for_sizes(tmp_path: Path) -> None:
    """XLA's own code for this machine's CPU: results have eager's strides at each of the sizes."""

    def turned(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).t()

    rows = Dim("rows", min=2, max=9)
    options = {"dynamic_shapes": ({0: rows},), "specializations": [{"rows": 3}, {"rows": 5}], "methods": ("infer",)}
    path = tmp_path / "model.aotpack"
    aotpack.build(turned, (torch.randn(4, 6),), out=path, targets=("xla:cpu",), **options)  # type: ignore[arg-type]
    loaded = load(path, backend="xla:cpu")
    with torch.no_grad():
        for count in (3, 5, 3):
            x = torch.randn(count, 6)
            found = loaded(x)
            torch.testing.assert_close(found, turned(x))
            assert found.stride() == turned(x).stride()
        with pytest.raises(InputError, match=r"no code for rows=4 on this device"):
            loaded(torch.randn(4, 6))


class Powers(torch.nn.Module):
    """Takes an integer that varies beside a tensor whose rows do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return ((x * self.weight).tanh() ** 3 * n).sum() / x.shape[0] + torch.ones(n).sum()


def powers(out: Path, second: bool) -> torch.nn.Module:
    """A bundle for two sizes and, unless second derivatives are asked for, two integers."""
    torch.manual_seed(0)
    model, rows, n = Powers(), Dim("rows", min=2, max=9), Dim("n", min=2, max=9)
    specializations = [{"rows": 3}, {"rows": 4}] if second else [{"rows": 3, "n": 5}, {"rows": 4, "n": 7}]
    aotpack.build(
        copy.deepcopy(model),
        (torch.randn(3, 4, requires_grad=True), 5),
        out=out,
        targets=("xla:cpu",),
        front_ends=("trace",),
        dynamic_shapes=({0: rows}, None if second else n),
        specializations=specializations,
        second_derivatives=second,
    )
    return model


def test_integers_are_part_of_the_sizes(tmp_path: Path) -> None:
    model = powers(tmp_path / "m", second=False)
    loaded = load(tmp_path / "m", backend="xla:cpu")
    for count, n in ((3, 5), (4, 7)):
        x = torch.randn(count, 4, requires_grad=True)
        there = x.detach().requires_grad_()
        expected, found = model(x, n), loaded(there, n)
        expected.backward()
        found.backward()
        torch.testing.assert_close(found.cpu(), expected)
        torch.testing.assert_close(there.grad.cpu(), x.grad)
    with pytest.raises(InputError, match="no code for rows=3,n=7 on this device"):
        loaded(torch.randn(3, 4), 7)


def test_second_derivatives_at_each_size(tmp_path: Path) -> None:
    model = powers(tmp_path / "m", second=True)
    loaded = load(tmp_path / "m", backend="xla:cpu")
    for count in (3, 4):
        x = torch.randn(count, 4, requires_grad=True)
        there = x.detach().requires_grad_()
        found = []
        for module, given in ((model, x), (loaded, there)):
            module.zero_grad()
            (first,) = torch.autograd.grad(module(given, 5), given, create_graph=True)
            first.square().sum().backward()
            found.append([value.detach().cpu() for value in (first, given.grad, module.weight.grad)])
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)

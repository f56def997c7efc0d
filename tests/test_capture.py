"""What a build does to the process while it traces, and what it tells of models that it cannot trace."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

import aotpack
from aotpack._torch.api.functional_call import functional_call
from aotpack_loader import load
from aotpack_loader.errors import BuildError, CaptureError


def _likelihood(x: Tensor) -> Tensor:
    return Normal(x, 1.0).log_prob(x * 2).sum()


def _by_value(x: Tensor) -> Tensor:
    return _likelihood(x) if x.sum() > 0 else x


@pytest.mark.parametrize("checks", [True, False])
def test_distributions_check_their_arguments_again_after_a_build(tmp_path: Path, checks: bool) -> None:
    before = Distribution._validate_args
    Distribution.set_default_validate_args(checks)
    try:
        aotpack.build(_likelihood, (torch.ones(3),), out=tmp_path / "m.aotpack", targets=("portable",), methods=("infer",))
        assert Distribution._validate_args is checks
        with pytest.raises(CaptureError):
            aotpack.build(_by_value, (torch.ones(3),), out=tmp_path / "n.aotpack", targets=("portable",), methods=("infer",))
        assert Distribution._validate_args is checks
    finally:
        Distribution.set_default_validate_args(before)


class Cached(nn.Module):
    """Its first call fills a cache and initialises a parameter from data, and every call counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.scale = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Parameter(torch.ones(3))
        self.angles: Tensor | None = None
        self.ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.ready = True
            self.scale.data.copy_(x.std(0))
        if self.angles is None or len(self.angles) < len(x):
            self.angles = torch.arange(len(x), dtype=x.dtype).sin()
        return (self.norm(self.layer(x)) * self.scale * self.angles[: len(x), None]).square().mean()


def test_a_warm_up_sets_up_a_copy(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, out = Cached(), torch.randn(5, 3), tmp_path / "m.aotpack"
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(BuildError, match="warm_up=True"):
        aotpack.build(model, (x,), out=out, targets=("portable",))

    aotpack.build(model, (x,), out=out, targets=("portable",), warm_up=True)
    assert model.angles is None
    assert not model.ready
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    bundle = aotpack.load(out)
    with torch.no_grad():
        model.eval()(x)  # sets up
    model.train()
    losses = [module(x) for module in (model, bundle)]
    for loss in losses:
        loss.backward()
    assert torch.equal(*losses)
    assert torch.equal(model.layer.weight.grad, bundle.get_parameter("layer.weight").grad)


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.table = nn.BatchNorm1d(3), None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.ones(3)
        return self.norm(x) * self.table


def test_a_warm_up_leaves_statistics_as_they_were(tmp_path: Path) -> None:
    out = tmp_path / "m.aotpack"
    aotpack.build(Counted(), (torch.randn(5, 3),), out=out, targets=("portable",), warm_up=True)
    bundle = aotpack.load(out)
    assert bundle.get_buffer("norm.num_batches_tracked") == 0
    assert torch.equal(bundle.get_buffer("norm.running_mean"), torch.zeros(3))


def _fails(x: Tensor) -> Tensor:
    return x @ torch.ones(x.shape[1] + 1, 2)


def test_a_model_that_fails_by_itself_shows_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as caught:
        aotpack.build(_fails, (torch.ones(2, 3),), out=tmp_path / "m.aotpack", targets=("portable",))
    text = str(caught.value)
    assert text.startswith("The model fails on its example inputs in train mode: RuntimeError: ")
    assert "mat1 and mat2 shapes cannot be multiplied" in text  # after "mm: " from torch 2.15 on
    assert "test_capture.py" in text
    assert "return x @ torch.ones(x.shape[1] + 1, 2)" in text
    assert "front end" not in text


def _branches_and_writes(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.sin() if x.sum() > 0 else x.cos()


def test_an_argument_that_is_no_leaf_stays_none_where_eager_explains(tmp_path: Path) -> None:
    """A leaf that requires a gradient cannot be written to. The example is none, so eager does not fail."""
    x = torch.ones(3, requires_grad=True) * 1
    with pytest.raises(CaptureError) as caught:
        aotpack.build(_branches_and_writes, (x,), out=tmp_path / "m.aotpack", targets=("portable",))
    assert "fails on its example inputs" not in str(caught.value)
    assert "leaf" not in str(caught.value)


def _residual(x: Tensor) -> Tensor:
    points = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(points.sin().sum(), points, create_graph=True)
    return slope.square().mean()


def test_a_loss_that_needs_gradients_builds_without_infer(tmp_path: Path) -> None:
    """Without gradients it fails in eager, too."""

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return _residual(self.layer(x)) + self.layer(x).mean()

    report = aotpack.build(Loss(), (torch.ones(2, 3),), out=tmp_path / "m.aotpack", targets=("portable",))
    assert report.methods == ("train",)
    assert any("The model fails on its example inputs in eval mode, without gradients" in text for text in report.warnings)


def test_a_function_without_inputs_builds_in_silence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """torch's code for such a graph uses a name that it does not define, and torch prints the traceback."""
    aotpack.build(_drawn, (), out=tmp_path / "m", targets=("portable",))
    assert capfd.readouterr().err == ""
    torch.manual_seed(0)
    found = load(tmp_path / "m")()
    torch.manual_seed(0)
    assert torch.equal(found, _drawn())


def _drawn() -> Tensor:
    return torch.empty(3).exponential_(2.0)


class Twice(nn.Module):
    """A module with two names, which fails at a negative number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(3, 3)
        self.scales = nn.ModuleDict({"x": self.scale})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.min() < 0:
            raise ValueError("a negative number")
        return self.scales["x"](self.scale(x))


@pytest.mark.parametrize("x", [torch.ones(2, 3), -torch.ones(2, 3)])
def test_a_module_with_two_names_has_its_own_weights_after_a_call_with_others(x: torch.Tensor) -> None:
    model = Twice()
    weight, zeros = model.scale.weight, {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    with contextlib.suppress(ValueError):
        assert torch.equal(functional_call(model, zeros, (x,), {}), torch.zeros(2, 3))
    assert model.scale.weight is weight

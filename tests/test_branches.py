"""Python branches on truth values of tensors: refused with their line, or traced the example's way and checked at each call."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributions, nn

import aotpack
from aotpack.capture import flags_read
from aotpack_loader import load
from aotpack_loader.errors import BranchError, BuildError, CaptureError, ModeError


@pytest.fixture(autouse=True)
def checks_of_distributions() -> Iterator[None]:
    """They are on, as in a fresh process: the first ``torch.compile`` of one turns them off."""
    before = distributions.Distribution._validate_args
    distributions.Distribution.set_default_validate_args(True)
    yield
    distributions.Distribution.set_default_validate_args(before)


class Checked(nn.Module):
    """Clamps what is not finite in training, as transformers' encoders do, and checks its labels, as its heads do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        hidden = self.drop(self.norm(self.layer(x)))
        if self.training and not torch.isfinite(hidden).all().item():
            hidden = torch.nan_to_num(hidden)
        if labels.max() >= 4:
            raise ValueError("a label is out of range")
        return nn.functional.cross_entropy(hidden, labels)


@pytest.fixture
def model() -> Checked:
    torch.manual_seed(0)
    return Checked()


X, LABELS = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])


def test_a_branch_is_refused_with_its_line_and_the_way_out(model: Checked, tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as error:
        aotpack.build(model, (X, LABELS), out=tmp_path / "m.aotpack", targets=("portable",))
    assert "test_branches.py" in str(error.value)
    assert "if self.training and not torch.isfinite(hidden).all().item():" in str(error.value)
    assert 'branches="example"' in str(error.value)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_branch_follows_the_example(model: Checked, tmp_path: Path, dynamic: bool) -> None:
    eager, state = copy.deepcopy(model), torch.get_rng_state()
    shapes = {"x": {0: torch.export.Dim("n", max=9)}, "labels": {0: torch.export.Dim("n", max=9)}} if dynamic else None
    out = tmp_path / "m.aotpack"
    report = aotpack.build(model, (X, LABELS), out=out, targets=("portable",), dynamic_shapes=shapes, branches="example")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), eager.state_dict().values(), strict=True))
    assert any("if labels.max() >= 4:" in warning for warning in report.warnings)

    bundle = load(out)
    size = 3 if dynamic else 5
    for seed in range(2):
        losses = []
        for module in (eager, bundle):
            torch.manual_seed(seed)
            losses.append(module(X[:size], LABELS[:size].flip(0)))
            losses[-1].backward()
        assert torch.equal(*losses)
    for (name, a), (_, b) in zip(eager.named_parameters(), bundle.named_parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), name
    assert torch.equal(eager.norm.running_var, bundle.get_buffer("norm.running_var"))
    with torch.no_grad():
        assert torch.equal(eager.eval()(X[:size], LABELS[:size]), bundle.eval()(X[:size], LABELS[:size]))


def test_a_call_that_goes_another_way_fails_and_writes_nothing(model: Checked, tmp_path: Path) -> None:
    out = tmp_path / "m.aotpack"
    aotpack.build(model, (X, LABELS), out=out, targets=("portable",), methods=("train",), branches="example")
    bundle = load(out)
    with pytest.raises(BranchError, match=r"if labels.max\(\) >= 4: is True, was False on the example inputs"):
        bundle(X, LABELS + 1)
    with pytest.raises(BranchError, match=r"isfinite"):
        bundle(X * torch.inf, LABELS)
    assert torch.equal(bundle.get_buffer("norm.running_mean"), torch.zeros(4))


class Careful(nn.Module):
    """Checks what it is given in several forms, and computes a gradient itself."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        if (ids < 0).any() or not (ids < 9).all():
            message = f"ids are out of range for {len(ids)} rows"
            raise ValueError(message)
        assert bool((ids != 5).all()), "5 is reserved"
        if torch.isfinite(x).all():
            pass
        else:
            raise ValueError("not finite")
        if x.sum().isnan().item():
            raise ValueError("not a number")
        if not 0 <= ids.sum().item() < 15:
            raise ValueError("too many")
        return x.sin() + torch.autograd.grad(x.cos().sum(), x, create_graph=True)[0] * ids


@pytest.mark.compiled
@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_checks_that_raise_are_kept(target: str, tmp_path: Path) -> None:
    """No option is needed: the other way of such a branch is an error in eager, too."""
    x, ids = torch.randn(3, requires_grad=True), torch.tensor([1, 2, 3])
    report = aotpack.build(Careful(), (x, ids), out=tmp_path / "m", targets=(target,), methods=("train",))
    assert not any("branch" in warning for warning in report.warnings)
    model, loaded = Careful(), load(tmp_path / "m")
    torch.testing.assert_close(loaded(x, ids + 1), model(x, ids + 1))
    infinite = torch.full((3,), torch.inf, requires_grad=True)
    for given, line in (
        ((x, -ids), "ids < 0"),
        ((x, ids + 7), "ids < 9"),
        ((x, ids + 3), "ids != 5"),
        ((x, ids * 2 + 2), "ids.sum"),
        ((infinite, ids), "isfinite"),
    ):
        with pytest.raises((ValueError, AssertionError)):
            model(*given)
        with pytest.raises(BranchError, match=line):
            loaded(*given)


class Caught(nn.Module):
    """Its errors are no errors of the call."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            if (x > 3).any():
                raise ValueError
        except ValueError:
            return x * 2
        return x * 3


class Either(nn.Module):
    """Which of the two holds is not known."""

    def forward(self, x: Tensor) -> Tensor:
        if (x > 3).any() and (x < 2).any():
            raise ValueError
        return x * 3


class Suppressed(nn.Module):
    """Its errors are no errors of the call."""

    def forward(self, x: Tensor) -> Tensor:
        with contextlib.suppress(ValueError):
            if (x > 3).any():
                raise ValueError
            x = x * 2
        return x * 3


@pytest.mark.parametrize("model", [Caught(), Suppressed(), Either()])
def test_what_does_not_only_raise_is_a_branch(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"a Python branch depends on the value of a tensor(.|\n)*test_branches"):
        aotpack.build(model, (torch.ones(3, requires_grad=True),), out=tmp_path / "m", targets=("portable",))


class Aware(nn.Module):
    """Looks at its mask except where it is traced, as transformers' attention masks do."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if not torch.compiler.is_exporting() and mask.all():
            mask = torch.ones_like(mask)
        if not torch.isfinite(x).all():
            x = torch.nan_to_num(x)
        return (x.sin() * mask).sum()


def test_branches_that_a_trace_leaves_out_are_not_asked_for(tmp_path: Path) -> None:
    out, x = tmp_path / "m.aotpack", torch.randn(3, requires_grad=True)
    report = aotpack.build(Aware(), (x, torch.ones(3)), out=out, targets=("portable",), branches="example")
    assert "captured 'train' with the export front end" in report.notes
    assert any("isfinite" in warning and "has only the branch" in warning for warning in report.warnings)
    assert not any("mask.all()" in warning for warning in report.warnings)
    bundle, mask = load(out), torch.tensor([1.0, 0.0, 1.0])
    torch.testing.assert_close(bundle(x, mask), Aware()(x, mask), rtol=0, atol=0)
    with pytest.raises(BranchError, match=r"if not torch.isfinite\(x\).all\(\): is False, was True"):
        bundle(x * torch.nan, mask)


class Branching(nn.Module):
    """Follows the values of its input, and the mode of a module that has no mode of its own to follow."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if x.sum() > 0:
            y = y * 2
        return y + self.second(x) if self.second.training else y


def test_modes_are_seen_past_a_branch(tmp_path: Path) -> None:
    """The run that finds which modes the model reads follows the branches of the trace."""
    model, x = Branching(), torch.ones(2, 4)
    aotpack.build(model, (x,), out=tmp_path / "m", targets=("portable",), methods=("train",), branches="example")
    loaded = load(tmp_path / "m")
    loaded.first.eval()
    assert torch.equal(loaded(x), model(x))
    loaded.second.eval()
    with pytest.raises(ModeError, match=r"second: was in train\(\) .* is in eval\(\)"):
        loaded(x)


def test_all_modes_are_seen_where_nobody_can_tell() -> None:
    assert flags_read(Branching(), (torch.ones(2, 4),), {}) == {"first": True, "second": True}


def test_branches_are_refused_or_follow_the_example(model: Checked, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="branches: 'guess' is not one of refuse, example"):
        aotpack.build(model, (X, LABELS), out=tmp_path / "m.aotpack", targets=("portable",), branches="guess")


@pytest.mark.parametrize(
    ("function", "good", "bad", "message"),
    [
        (lambda x, y: nn.functional.gaussian_nll_loss(x, x, y), [1.0, 2.0], [1.0, -2.0], "var has negative entry/entries"),
        (lambda x, y: torch.cov(x, aweights=y), [1.0, 2.0], [1.0, -2.0], "aweights cannot be negative"),
        (lambda x, y: torch.cov(x, aweights=y), [1.0, 2.0], [0.0, 0.0], "weights sum to zero"),
        (lambda x, y: distributions.Normal(x, y).log_prob(x), [1.0, 2.0], [1.0, -2.0], "parameter scale of distribution Normal"),
    ],
)
@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_what_torch_checks_of_values_is_checked_when_it_runs(
    function: Any, good: list[float], bad: list[float], message: str, target: str, tmp_path: Path
) -> None:
    x = torch.randn(2)
    aotpack.build(function, (x, torch.tensor(good)), out=tmp_path / "m.aotpack", targets=(target,))
    loaded = load(tmp_path / "m.aotpack", backend=target)
    torch.testing.assert_close(loaded(x, torch.tensor(good)), function(x, torch.tensor(good)))
    with pytest.raises(RuntimeError, match=message):
        loaded(x, torch.tensor(bad))


@pytest.mark.parametrize(
    ("front_end", "function", "good", "bad", "message"),
    [
        (
            "dynamo",
            lambda x, y: distributions.Exponential(x.exp()).log_prob(y),
            [1.0, 2.0],
            [1.0, -2.0],
            "support of .* Exponential",
        ),
        (
            "export",
            lambda x, y: distributions.Categorical(logits=x).log_prob(y),
            [0.0, 1.0],
            [0.0, 2.0],
            "support of .* Categorical",
        ),
        (
            "trace",
            lambda x, y: distributions.Bernoulli(y).log_prob(x.gt(0) * 1.0),
            [0.5, 1.0],
            [0.5, 2.0],
            "probs of .* Bernoulli",
        ),
        (
            "dynamo",
            lambda x, y: distributions.Geometric(y).log_prob(x.new_ones(2)),
            [0.5, 1.0],
            [0.5, 0.0],
            "probs of .* positive",
        ),
        (
            "dynamo",
            lambda x, y: distributions.MultivariateNormal(x, torch.diag(y)).log_prob(x),
            [1.0, 2.0],
            [1.0, -2.0],
            "parameter covariance_matrix of .* MultivariateNormal",
        ),
    ],
)
def test_what_distributions_check(
    front_end: str, function: Any, good: list[float], bad: list[float], message: str, tmp_path: Path
) -> None:
    x = torch.randn(2)
    out = tmp_path / "m.aotpack"
    aotpack.build(function, (x, torch.tensor(good)), out=out, targets=("portable",), methods=("infer",), front_ends=(front_end,))
    loaded = load(out)
    torch.testing.assert_close(loaded(x, torch.tensor(good)), function(x, torch.tensor(good)))
    with pytest.raises(ValueError, match=r"to satisfy the constraint|to be positive|to be within the support"):
        function(x, torch.tensor(bad))
    with pytest.raises(RuntimeError, match=message):
        loaded(x, torch.tensor(bad))


def test_checks_of_distributions_that_are_turned_off_stay_so(tmp_path: Path) -> None:
    def unchecked(x: Tensor, y: Tensor) -> Tensor:
        return distributions.Normal(x, y, validate_args=False).log_prob(x)

    x, y = torch.randn(2), torch.tensor([1.0, -2.0])
    aotpack.build(unchecked, (x, y), out=tmp_path / "m.aotpack", targets=("portable",), methods=("infer",))
    torch.testing.assert_close(load(tmp_path / "m.aotpack")(x, y), unchecked(x, y), equal_nan=True)
    assert distributions.Distribution._validate_args  # as before


class Compared(nn.Module):
    """Asks by functions of torch whether tensors are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if torch.equal(self.centre, torch.zeros(4)) and not x.equal(x + 1) and not torch.equal(x, x[:1]):
            x = x + 1
        if torch.allclose(x, x + 1e-12) and not (x > 99).any().is_nonzero():
            x = x * 2
        return x.sum()


def test_comparisons_of_tensors_are_branches(tmp_path: Path) -> None:
    out = tmp_path / "m.aotpack"
    aotpack.build(Compared(), (X,), out=out, targets=("portable",), branches="example")
    bundle, eager = load(out), Compared()
    assert torch.equal(bundle(X + 3), eager(X + 3))
    bundle.load_state_dict({"centre": torch.ones(4)})
    with pytest.raises(BranchError, match=r"torch\.equal"):
        bundle(X)


@pytest.mark.parametrize("compare", [torch.allclose, torch.equal, Tensor.equal])
def test_a_tensor_with_nan_does_not_equal_itself(compare: Callable[[Tensor, Tensor], bool], tmp_path: Path) -> None:
    def without_nan(x: Tensor) -> Tensor:
        return x * 2 if compare(x, x) else x.nan_to_num()

    out = tmp_path / "m.aotpack"
    aotpack.build(without_nan, (X,), out=out, targets=("portable",), branches="example")
    assert torch.equal(load(out)(X), without_nan(X))
    with pytest.raises(BranchError, match=r"compare\(x, x\)"):
        load(out)(X * torch.nan)


class Numbers(nn.Module):
    """Compares numbers that it reads off tensors, and computes with one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, k: Tensor) -> Tensor:
        self.calls.add_(1)
        options = {"least": 2}
        if k.item() >= options["least"] and not x.max().item() > 0.1:
            x = x + k.item()
        if any(n > 9.5 for n in x.tolist()):
            x = x * 3
        if k.item() > 2:
            x = x.repeat(k.item())[:2]  # torch asks for more of the number
        return (x * 2).sum()


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_comparisons_of_numbers_are_branches(target: str, tmp_path: Path) -> None:
    out, x = tmp_path / "m.aotpack", torch.tensor([0.0, -1.0], requires_grad=True)
    aotpack.build(Numbers(), (x, torch.tensor(3)), out=out, targets=(target,), methods=("train",), branches="example")
    bundle, eager = load(out, backend=target), Numbers()
    for k in (3, 7):
        assert torch.equal(bundle(x, torch.tensor(k)), eager(x, torch.tensor(k)))
    with pytest.raises(BranchError, match=r"k.item\(\) >= .*: is False, was True"):
        bundle(x, torch.tensor(1))
    with pytest.raises(BranchError, match=r"x.max\(\).item\(\) > 0.1: is True, was False"):
        bundle(torch.tensor([0.1, -1.0]), torch.tensor(3))  # a float32 of 0.1 is more than Python's
    with pytest.raises(BranchError, match=r"n > 9.5 .*: is True, was False"):
        bundle(x, torch.tensor(10))
    with pytest.raises(BranchError, match=r"k.item\(\) > 2: is False, was True"):
        bundle(x, torch.tensor(2))
    assert bundle.get_buffer("calls").item() == 2


def _truth(x: Tensor, k: Tensor) -> Tensor:
    return x * 2 if k.item() else x


def _loop(x: Tensor, k: Tensor) -> Tensor:
    n = k.item()
    while n < 20:
        x, n = x * 2, n * 2
    return x


@pytest.mark.parametrize(("function", "other"), [(_truth, 0.0), (_loop, 1.0)])
def test_numbers_of_branches(function: Any, other: float, tmp_path: Path) -> None:
    out, x = tmp_path / "m.aotpack", torch.ones(2)
    aotpack.build(function, (x, torch.tensor(3.0)), out=out, targets=("portable",), branches="example")
    for k in (3.0, 3.5):
        assert torch.equal(load(out)(x, torch.tensor(k)), function(x, torch.tensor(k)))
    with pytest.raises(BranchError):
        load(out)(x, torch.tensor(other))


def _loop_of(x: Tensor, k: Tensor) -> Tensor:
    for i in range(k):  # type: ignore[call-overload]
        x = x * 2 + i
    return x


@pytest.mark.parametrize(
    ("function", "k", "same", "other"),
    [
        (lambda x, k: x * 2 if int(k) == 3 else x, 3, 3, 4),
        (lambda x, k: x * 2 if int(k) == 3 else x, 3.5, 3.25, 4.0),
        (lambda x, k: x * 2 if int(k) == -3 else x, -3.5, -3.25, -4.0),
        (lambda x, k: x * 2 if float(k) == 3 else x, 3, 3, 4),
        (lambda x, k: x * 2 if int(k) + int(torch.arange(3).max()) == 5 else x, 3, 3, 4),
        (lambda x, k: [x, x * 2, x * 3][k], 2, 2, 1),
        (lambda x, k: x * 2 if any((k > 2).tolist()) else x, [3, 1], [4, 0], [1, 1]),
        (lambda x, k: x * 2 if [True, False] in (k > 2).tolist() else x, [[3, 1]], [[4, 0]], [[3, 3]]),
        (_loop_of, 3, 3, 2),
    ],
)
def test_whole_numbers_are_branches(function: Any, k: Any, same: Any, other: Any, tmp_path: Path) -> None:
    out, x = tmp_path / "m.aotpack", torch.ones(2)
    report = aotpack.build(function, (x, torch.tensor(k)), out=out, targets=("portable",), methods=("train",), branches="example")
    assert any("has only the branch that the example inputs take" in warning for warning in report.warnings)
    for value in (k, same):
        assert torch.equal(load(out)(x, torch.tensor(value)), function(x, torch.tensor(value)))
    with pytest.raises(BranchError, match=r"has another value, was -?[\d.]+ on the example inputs|is (True|False), was"):
        load(out)(x, torch.tensor(other))


def test_the_way_out_is_shown_where_it_is_one(tmp_path: Path) -> None:
    def refused(function: Any) -> str:
        with pytest.raises(CaptureError) as error:
            aotpack.build(function, (torch.ones(2), torch.tensor(3.0)), out=tmp_path / "m.aotpack", targets=("portable",))
        return str(error.value)

    assert "To trace only the branches that the example" in refused(lambda x, k: x * 2 if int(k) == 3 else x)
    fraction = refused(lambda x, k: x * 2 if float(k) > 3 else x)
    assert "compute with the tensor" in fraction
    assert "To trace only the branches that the example" not in fraction


def test_a_plain_number_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"compute with the tensor"):
        aotpack.build(
            lambda x, k: x * 2 if float(k) > 3 else x,
            (torch.ones(2), torch.tensor(3.0)),
            out=tmp_path / "m.aotpack",
            targets=("portable",),
            branches="example",
        )


class Nested(nn.Module):
    """Branches on what is in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = self.layer(batch["x"])
        return x.sum() if batch["x"].sum() > 0 else -x.sum()


def test_branches_on_what_is_in_containers(tmp_path: Path) -> None:
    model, batch = Nested(), {"x": torch.ones(2, 3)}
    out = tmp_path / "m"
    aotpack.build(model, (batch,), out=out, targets=("portable",), methods=("train",), branches="example")
    loaded = load(out)
    torch.testing.assert_close(loaded(batch), model(batch))
    with pytest.raises(BranchError):
        loaded({"x": -torch.ones(2, 3)})

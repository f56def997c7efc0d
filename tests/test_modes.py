"""The caller's global modes: what a bundle keeps true of them, and what it refuses."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

import aotpack
from aotpack_loader.errors import AutogradError, InputError, ModeError, UnsupportedError
from aotpack_loader.runtime.modes import Modes


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("modes") / "mlp.aotpack"
    aotpack.build(model(), (torch.randn(5, 3),), out=out, targets=("portable",))
    return out


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# ---------------------------------------------------------------- transforms and forward mode


def mapped(f: Any) -> Any:
    return vmap(f)(torch.ones(2, 5, 3))


def pushed(f: Any) -> Any:
    return jvp(f, (torch.ones(5, 3),), (torch.full((5, 3), 2.0),))


def dual(f: Any) -> Any:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(torch.ones(5, 3), torch.full((5, 3), 2.0)))))


def differentiated(f: Any) -> Any:
    return grad(lambda p: functional_call(f, p, (torch.ones(5, 3),)).sum())(dict(f.named_parameters()))


@pytest.mark.parametrize("transform", [mapped, pushed, dual])
def test_without_gradients_an_interpreter_follows_transforms(bundle: Path, transform: Callable[[Any], Any]) -> None:
    loaded = aotpack.load(bundle).eval()
    with torch.no_grad():
        torch.testing.assert_close(transform(loaded), transform(model()))


@pytest.mark.parametrize("transform", [mapped, pushed, dual, differentiated])
def test_transforms_with_gradients_are_refused(bundle: Path, transform: Callable[[Any], Any]) -> None:
    with pytest.raises(ModeError, match="inside a transform of"):
        transform(aotpack.load(bundle))


def ensemble(f: nn.Module) -> Any:
    """One call for three states; what it writes to buffers is written to those of each."""
    states = [{name: value.detach() * factor for name, value in f.state_dict().items()} for factor in (1, 2, 3)]
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    out = vmap(lambda state: functional_call(f, state, (torch.arange(15.0).view(5, 3),)))(stacked)
    return out, stacked


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of vmap in torch 2.15
@pytest.mark.parametrize("grad_mode", [True, False])
def test_an_ensemble_of_states_that_are_written_to(tmp_path: Path, grad_mode: bool) -> None:
    normed = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=True))
    aotpack.build(normed, (torch.randn(5, 3),), out=tmp_path / "m", targets=("portable",), methods=("train",), cache=False)
    with torch.set_grad_enabled(grad_mode):
        torch.testing.assert_close(ensemble(aotpack.load(tmp_path / "m")), ensemble(normed))


@pytest.mark.parametrize("transform", [mapped, pushed, dual])
def test_compiled_code_follows_no_transform(bundle: Path, transform: Callable[[Any], Any]) -> None:
    """It reads memory: a tangent would be lost in silence."""
    loaded = aotpack.load(bundle).eval()
    call = loaded._aotpack_calls[False, False]
    call.modes = Modes(loaded.aotpack.program.methods["infer"], torch.device("cpu"), native=True)
    with torch.no_grad(), pytest.raises(ModeError, match="inside a transform of"):
        transform(loaded)


def test_batched_gradients(bundle: Path) -> None:
    eager, loaded = model(), aotpack.load(bundle)
    gradients = torch.randn(4, 5, 2)

    def batched(f: nn.Module) -> Any:
        return torch.autograd.grad(f(torch.ones(5, 3)), list(f.parameters()), gradients, is_grads_batched=True)

    torch.testing.assert_close(batched(loaded), batched(eager))
    step: Any = loaded._aotpack_calls[True, True].differentiable
    step.native = True
    with pytest.raises(AutogradError, match="one gradient at a time"):
        batched(loaded)


def test_gradients_of_gradients_draw_what_the_forward_drew(tmp_path: Path) -> None:  # R8
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Dropout(0.5))
    x = torch.randn(5, 3, requires_grad=True)
    aotpack.build(eager, (x,), out=tmp_path / "m", targets=("portable",), methods=("train",), second_derivatives=True)
    seen = []
    for f in (eager, aotpack.load(tmp_path / "m")):
        torch.manual_seed(7)
        y = f(x)
        torch.rand(3)
        state = torch.get_rng_state()
        (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        seen.append([y, gradient, *torch.autograd.grad(gradient.square().sum(), list(f.parameters()), allow_unused=True)])
        assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(seen[1], seen[0])


def test_second_derivatives_refuse_integers_that_vary(tmp_path: Path) -> None:
    """Gradients are traced as a function of tensors: they would keep the integer of the example."""

    def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
        return (x**3 * n).sum()

    options = {"dynamic_shapes": (None, torch.export.Dim("n", min=2, max=9)), "targets": ("portable",), "methods": ("train",)}
    args = torch.randn(3, requires_grad=True), 5
    with pytest.raises(UnsupportedError, match=r"n: is a dynamic integer"):
        aotpack.build(scaled, args, out=tmp_path / "m", second_derivatives=True, **options)
    aotpack.build(scaled, args, out=tmp_path / "m", **options)
    torch.testing.assert_close(aotpack.load(tmp_path / "m")(args[0], 7), scaled(args[0], 7))


def test_a_model_that_turns_gradients_on(tmp_path: Path) -> None:  # R9
    class Enabled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                return super().forward(x)

    aotpack.build(Enabled(3, 2), (torch.randn(4, 3),), out=tmp_path / "m", targets=("portable",))
    loaded = aotpack.load(tmp_path / "m").eval()
    with torch.no_grad():
        loaded(torch.randn(4, 3)).backward(torch.ones(4, 2))
        assert all(p.grad is not None for p in loaded.parameters())
        with pytest.raises(ModeError, match=r"no method for train\(\) with gradients off"):
            loaded.train()(torch.randn(4, 3))


# ---------------------------------------------------------------- determinism


@pytest.mark.usefixtures("deterministic")
def test_determinism_is_recorded_and_checked(bundle: Path, tmp_path: Path) -> None:  # A11
    aotpack.build(model(), (torch.randn(5, 3),), out=tmp_path / "m", targets=("portable",), methods=("infer",))
    sure = aotpack.load(tmp_path / "m").aotpack.program.methods["infer"]
    unsure = aotpack.load(bundle).aotpack.program.methods["infer"]
    assert (sure.deterministic, unsure.deterministic) == (True, False)
    cpu = torch.device("cpu")
    Modes(sure, cpu, native=True).check()
    Modes(unsure, cpu, native=False).check()
    with pytest.raises(ModeError, match="Deterministic algorithms are asked for"):
        Modes(unsure, cpu, native=True).check()
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="Deterministic algorithms are asked for"):
        Modes(unsure, cpu, native=True).check()


@pytest.mark.usefixtures("deterministic")
def test_operators_that_are_not_deterministic_refuse_themselves(tmp_path: Path) -> None:
    """Called one by one they see the flag, in forward and backward, as in eager."""
    torch.use_deterministic_algorithms(False)
    out = tmp_path / "m"
    aotpack.build(lambda x: x.put(torch.tensor([0, 0]), x.new_ones(2)), (torch.randn(3),), out=out, targets=("portable",))
    loaded = aotpack.load(out)
    loaded(torch.randn(3))
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        torch.randn(3).put(torch.tensor([0, 0]), torch.ones(2))
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        loaded(torch.randn(3))


# ---------------------------------------------------------------- autocast


def under_autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_autocast_at_build_and_at_call(tmp_path: Path) -> None:
    """Forward and gradients are those of eager under the same autocast, and the backward runs outside of it."""
    eager, out = model(), tmp_path / "m"
    with under_autocast():
        aotpack.build(eager, (torch.randn(5, 3),), out=out, targets=("portable",), methods=("train", "infer"))
    loaded = aotpack.load(out, check="full")
    assert loaded.aotpack.program.methods["train"].autocast == "bfloat16"
    x, seen = torch.randn(5, 3), []
    for f in (eager, loaded):
        with under_autocast():
            result = f(x)
            loss = result.float().square().sum()
        loss.backward()
        with under_autocast(), torch.no_grad():
            idle = f.eval()(x)
        seen.append([result, idle, *[p.grad for p in f.parameters()]])
    assert seen[1][0].dtype is torch.bfloat16
    torch.testing.assert_close(seen[1], seen[0], rtol=2e-2, atol=2e-2)


def test_further_arguments_of_train_are_refused(bundle: Path) -> None:
    model = aotpack.load(bundle)
    with pytest.raises(ModeError, match=r"takes the mode alone\.\n  frozen: is an argument"):
        model.train(True, frozen=True)  # type: ignore[call-arg, unused-ignore]
    assert not model.train(mode=False).training


def test_another_autocast_is_refused(tmp_path: Path) -> None:
    with under_autocast():
        aotpack.build(model(), (torch.randn(5, 3),), out=tmp_path / "m", targets=("portable",), methods=("train",))
    loaded = aotpack.load(tmp_path / "m")
    with pytest.raises(ModeError, match=r"under autocast to torch.bfloat16, and autocast is off"):
        loaded(torch.randn(5, 3))
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(ModeError, match=r"autocast is on, to torch.float16"):
        loaded(torch.randn(5, 3))


# ---------------------------------------------------------------- layouts and ties


def test_other_strides_are_said_once(bundle: Path) -> None:
    loaded = aotpack.load(bundle)
    with pytest.warns(aotpack.LayoutWarning, match=r"input has the strides \[1, 5\]; the bundle was built for \[3, 1\]"):
        loaded(torch.randn(3, 5).t())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded(torch.randn(3, 5).t())


def test_parameters_that_are_no_longer_tied(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
            self.other.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.other(self.one(x))

    aotpack.build(Tied(), (torch.randn(2, 3),), out=tmp_path / "m", targets=("portable",), methods=("train",))
    loaded = aotpack.load(tmp_path / "m")
    loaded(torch.randn(2, 3))
    loaded.get_submodule("other").weight = nn.Parameter(torch.randn(3, 3))
    with pytest.raises(InputError, match=r"other\.weight: was tied to one\.weight when the bundle was built, and no longer is"):
        loaded(torch.randn(2, 3))

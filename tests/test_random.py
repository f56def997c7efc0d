"""Random numbers and effects beyond one call: options, graphs as they are stored, budgets, native code, other processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance.cases.random import LOG, Checkpointed, effects_and_draws, logged, many, noted, unused
from torch import Tensor, nn
from torch.nn import functional as F

import aotpack
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices.generator import exchange_random_state
from aotpack_loader.devices.portable import PortableExecutable
from aotpack_loader.errors import BuildError, CorruptBundleError, UnsupportedError, UnsupportedVersionError
from aotpack_loader.format import schema
from aotpack_loader.selftest import run_self_test

CPU = torch.device("cpu")
FLOAT = schema.TensorValue("float32", [2], [1])
STATE = schema.TensorValue("uint8", [0], [1])


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


class Everything(nn.Module):
    """All that draws, computes again or has an effect, in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpointed = Checkpointed()

    def forward(self, x: Tensor) -> Tensor:
        noted(x, "first")
        y = logged(self.checkpointed(x[:, :4]).sum(1, keepdim=True), "second")
        z = effects_and_draws(unused(x)) + torch.empty_like(x).bernoulli_(0.4) * x
        noted(y, "last")
        return y * z + torch.rand_like(x.t()).t() * many(x)


def step(model: Any, x: Tensor) -> dict[str, Any]:
    """One step from one seed: results, gradients, states of the generator, what operators did."""
    LOG.clear()
    for parameter in model.parameters() if isinstance(model, nn.Module) else ():
        parameter.grad = None
    torch.manual_seed(5)
    given = x.clone().requires_grad_()
    result = model(given)
    forward = torch.get_rng_state()
    result.square().sum().backward()
    found = {"result": result.detach(), "input": given.grad, "forward": forward, "backward": torch.get_rng_state()}
    found |= {name: p.grad for name, p in model.named_parameters()} if isinstance(model, nn.Module) else {}
    return {**found, "log": list(LOG)}


def assert_same_step(eager: dict[str, Any], bundle: dict[str, Any]) -> None:
    assert eager.keys() == bundle.keys()
    for name, value in eager.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(bundle[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert [tag for tag, _ in bundle["log"]] == [tag for tag, _ in eager["log"]]


def test_native_code_draws_and_acts_as_eager(tmp_path: Path) -> None:
    """Every draw once and in order, state handed to what is computed again, effects in order: forward and backward."""
    model, x = Everything(), torch.randn(4, 5)
    out = tmp_path / "everything.aotpack"
    aotpack.build(
        model, (x.requires_grad_(),), out=out, targets=("cpu", "portable"), methods=("train",), rng="eager", cache=False
    )
    eager = step(model, x.detach())
    for backend in ("portable", "cpu"):
        assert_same_step(eager, step(aotpack.load(out, backend=backend), x.detach()))


CHILD = """
import sys, torch
sys.modules["aotpack"] = sys.modules["torch._inductor"] = None
import aotpack_loader
x = torch.load(sys.argv[2])
model = aotpack_loader.load(sys.argv[1], backend="cpu")
torch.manual_seed(5)
result = model(x.requires_grad_())
result.square().sum().backward()
torch.save([result.detach(), x.grad, torch.get_rng_state(), *(p.grad for p in model.parameters())], sys.argv[2])
"""


def test_native_code_hands_the_state_on_in_another_process(tmp_path: Path) -> None:
    """The operators on the random state are the loader's own; also with the numbers of the default mode."""
    model, x = Checkpointed(), torch.randn(3, 4)
    for mode in ("eager", "default"):
        out, given = tmp_path / f"{mode}.aotpack", tmp_path / f"{mode}.pt"
        aotpack.build(model, (x.clone().requires_grad_(),), out=out, methods=("train",), rng=mode)
        torch.save(x, given)
        subprocess.run([sys.executable, "-c", CHILD, str(out), str(given)], check=True)
        result, gradient, state, *gradients = torch.load(given)
        here = step(aotpack.load(out, backend="cpu"), x)
        torch.testing.assert_close(
            [result, gradient, state, *gradients], [v for k, v in here.items() if k not in ("forward", "log")]
        )
        if mode == "eager":
            assert_same_step(step(model, x), here)


@pytest.mark.parametrize("budget", [0.0, 0.4])
def test_a_memory_budget_draws_again_what_was_drawn(tmp_path: Path, budget: float) -> None:
    """What the budget computes again, and nobody marked, starts from the forward's state."""

    def model(x: Tensor) -> Tensor:
        return F.dropout(torch.empty_like(x).exponential_() * x.sin(), 0.5, True).exp().sin() * torch.randn_like(x).cos()

    x = torch.randn(40, 50)
    out = tmp_path / "budget.aotpack"
    aotpack.build(
        model,
        (x.clone().requires_grad_(),),
        out=out,
        targets=("portable",),
        memory_budget=budget,
        rng="eager",
        methods=("train",),
    )
    assert_same_step(step(model, x), step(aotpack.load(out), x))


def test_a_method_says_whose_numbers_it_draws(tmp_path: Path) -> None:
    layer = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    for mode in ("default", "eager"):
        out = tmp_path / mode
        aotpack.build(layer, (torch.ones(1, 2),), out=out, targets=("portable",), rng=mode)
        assert {method.rng for method in Bundle.open(out).program.methods.values()} == {mode}
    with pytest.raises(BuildError, match="'numpy' is not one of default, eager"):
        aotpack.build(layer, (torch.ones(1, 2),), out=tmp_path / "no", targets=("portable",), rng="numpy")  # type: ignore[arg-type]


def test_a_state_is_saved_for_what_is_computed_again(tmp_path: Path) -> None:
    """The mask is not: 5 kB a draw, whatever its size."""
    model, x = Checkpointed(), torch.randn(3000, 4)
    report = aotpack.build(model, (x.requires_grad_(),), out=tmp_path / "m", targets=("portable",), methods=("train",))
    backward = Bundle.open(tmp_path / "m").program.methods["train"].backward
    assert backward is not None
    operators = [node.op for node in Bundle.open(tmp_path / "m").graph(backward.graph).nodes]
    drawn = operators.count("aten.native_dropout.default")
    assert drawn == 4
    assert operators.count("builtin.exchange_random_state") == 2 * drawn
    masks = x.numel()
    assert report.saved_bytes["train"] < 4 * torch.get_rng_state().numel() + 3 * x.numel() * 4 + masks


def test_what_draws_eagers_numbers_has_a_self_test(tmp_path: Path) -> None:
    out = tmp_path / "m"
    aotpack.build(
        Checkpointed(), (torch.randn(3, 4),), out=out, targets=("portable",), methods=("train",), rng="eager", self_test=True
    )
    report = run_self_test(out)
    assert report.ran
    assert report.ok


# ---------------------------------------------------------------- stored graphs


def _run(nodes: list[schema.Node], outputs: list[Any]) -> list[Any]:
    return PortableExecutable(schema.Graph([], [], nodes, outputs), CPU)([])


def _rand(name: str) -> schema.Node:
    return schema.Node(name, "aten.rand.default", [[2]], FLOAT)


def test_g7_every_node_runs_once_in_order() -> None:
    """G7: what draws is run although nobody uses it."""
    torch.manual_seed(0)
    wanted, after = [torch.rand(2), torch.rand(2)][1], torch.get_rng_state()
    torch.manual_seed(0)
    (found,) = _run([_rand("a"), _rand("b")], [schema.ValueRef("b")])
    assert torch.equal(found, wanted)
    assert torch.equal(torch.get_rng_state(), after)


def test_g7_a_state_is_put_in_place_around_a_draw() -> None:
    nodes = [
        schema.Node("saved", "builtin.random_state", [], STATE),
        _rand("first"),
        _rand("other"),
        schema.Node("own", "builtin.exchange_random_state", [schema.ValueRef("saved")], STATE),
        _rand("again"),
        schema.Node("back", "builtin.exchange_random_state", [schema.ValueRef("own")], STATE),
        _rand("next"),
    ]
    torch.manual_seed(0)
    draws = [torch.rand(2) for _ in range(3)]
    torch.manual_seed(0)
    found = _run(nodes, [schema.ValueRef(name) for name in ("first", "other", "again", "next")])
    assert [value.tolist() for value in found] == [draws[i].tolist() for i in (0, 1, 0, 2)]


def test_a_state_that_is_none_is_refused() -> None:
    nodes = [_rand("a"), schema.Node("b", "builtin.exchange_random_state", [schema.ValueRef("a")], STATE)]
    before = torch.get_rng_state()
    with pytest.raises(CorruptBundleError, match="random generator to an invalid state"):
        _run(nodes, [])
    assert torch.get_rng_state().shape == before.shape


def test_a_state_that_would_read_past_itself_is_refused() -> None:
    """torch takes 624 numbers left after the 624th, and then draws what is in memory behind the state."""
    before = torch.get_rng_state()
    state = before.clone()
    state[8:24].view(torch.int32).copy_(torch.tensor([624, 1, 624, 0]))
    torch.set_rng_state(state)  # torch takes it
    torch.set_rng_state(before)
    with pytest.raises(CorruptBundleError, match="random generator to an invalid state"):
        exchange_random_state(state)
    assert torch.equal(torch.get_rng_state(), before)
    for count in (0, 1, 623, 624, 625):
        torch.manual_seed(0)
        torch.rand(count)
        exchange_random_state(torch.get_rng_state())


# ---------------------------------------------------------------- custom operators


@pytest.fixture(scope="module")
def custom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that calls operators of a package."""
    out = tmp_path_factory.mktemp("custom") / "custom.aotpack"
    x = torch.randn(3, requires_grad=True)
    aotpack.build(lambda x: logged(x, "a") * 2, (x,), out=out, targets=("cpu", "portable"), methods=("train",))
    return out


def test_custom_operators_are_requirements(custom: Path) -> None:
    assert Bundle.open(custom).program.requirements.operators == ["aotpack_conformance"]


@pytest.mark.parametrize("backend", ["portable", "cpu"])
def test_custom_operators_that_nobody_registered_are_named_at_load(custom: Path, backend: str) -> None:
    code = (
        "import sys, aotpack_loader\n"
        "try:\n"
        "    aotpack_loader.load(sys.argv[1], backend=sys.argv[2], operators=('aotpack_conformance',))\n"
        "except aotpack_loader.errors.UnsupportedVersionError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(custom), backend], check=True, capture_output=True, text=True)
    assert "aotpack_conformance.logged.default: not registered" in done.stdout
    assert "Import the package that registers aotpack_conformance before load()" in done.stdout


def test_every_missing_operator_is_listed() -> None:
    from aotpack_loader.devices.operators import require

    require(["aten.mul.Tensor"])
    with pytest.raises(UnsupportedVersionError) as caught:
        require(["aten.mul.Tensor", "nobody.first.default", "nobody.second.default", "aten.mul.Nothing"])
    assert [problem.where for problem in caught.value.problems] == [
        "aten.mul.Nothing",
        "nobody.first.default",
        "nobody.second.default",
    ]


def test_draws_inside_control_flow_are_not_for_the_exact_mode(tmp_path: Path) -> None:
    def branch(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: nn.functional.dropout(x, 0.5, True), lambda x: x.cos(), (x,))

    with pytest.raises(UnsupportedError, match=r"test_random.py.*draws inside control flow"):
        aotpack.build(branch, (torch.randn(4),), out=tmp_path / "m", targets=("portable",), methods=("infer",), rng="eager")


def test_a_draw_in_a_trained_branch_is_a_warning(tmp_path: Path) -> None:
    """torch's backward computes the branch again and draws anew: eager's gradients are of another draw, and so are a bundle's."""

    def branch(chosen: Tensor, x: Tensor) -> Tensor:
        return torch.cond(chosen, lambda x: nn.functional.dropout(x, 0.5, True), lambda x: x.cos(), (x,))

    args = torch.tensor(True), torch.randn(4, requires_grad=True)
    report = aotpack.build(branch, args, out=tmp_path / "m", targets=("portable",))
    (warning,) = [text for text in report.warnings if "recomputes a branch" in text]
    assert "'train'" in warning
    assert "test_random.py" in warning

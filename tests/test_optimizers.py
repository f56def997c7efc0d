"""Optimizers in bundles: their steps beside those of ``torch.optim``, their state, their errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from conftest import FreshProcess
from torch import nn

import aotpack
import aotpack_loader
from aotpack.tools.cli import main
from aotpack_loader.errors import (
    AotpackError,
    BuildError,
    CorruptBundleError,
    EditError,
    InputError,
    StateError,
    UnsupportedError,
)
from devtools.spec.documents import Documents
from devtools.spec.vectors import tar

Made = Callable[[nn.Module], torch.optim.Optimizer]


class Net(nn.Module):
    """Matrices, vectors, a scalar, a tied weight, and a parameter in channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.filter = nn.Parameter(torch.randn(2, 3, 2, 2).contiguous(memory_format=torch.channels_last))
        self.tied = nn.Linear(4, 3)
        self.tied.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.norm(self.first(x))) * self.scale + self.filter.sum() + self.tied(x).sum()
        return y


def built(tmp_path: Path, optimizer: Any, *, target: str = "portable", model: nn.Module | None = None) -> tuple[nn.Module, Any]:
    """A model and the same model from a bundle with an optimizer."""
    torch.manual_seed(0)
    model = Net() if model is None else model
    out = tmp_path / "net.aotpack"
    matrix = next(p for p in model.parameters() if p.dim() == 2)
    x = torch.randn(5, matrix.shape[-1], dtype=matrix.dtype)
    aotpack.build(model, (x,), out=out, targets=(target,), methods=("train",), optimizer=optimizer)
    return model, aotpack_loader.load(out)


def steps(
    pairs: list[tuple[nn.Module, torch.optim.Optimizer]], count: int, skipped: str = "", *, contiguous: bool = True
) -> None:
    """Take steps with equal gradients and learning rates that change. Now and then a parameter has no gradient.

    Gradients are ``contiguous``, or have the strides of their parameters.
    """
    generator = torch.Generator().manual_seed(1)
    for i in range(count):
        for parameters in zip(*(module.named_parameters() for module, _ in pairs), strict=True):
            gradient = torch.randn(parameters[0][1].shape, generator=generator)
            for name, parameter in parameters:
                like = torch.empty_like(parameter, memory_format=torch.contiguous_format if contiguous else torch.preserve_format)
                parameter.grad = None if name == skipped and i % 2 == 0 else like.detach().copy_(gradient)
        for _, optimizer in pairs:
            for group in optimizer.param_groups:
                group["lr"] *= 0.98
            optimizer.step()


def largest_difference(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> float:
    """Between two optimizers: of parameters and of state, in relation to the values."""
    found = [0.0]
    for group, others in zip(one.param_groups, other.param_groups, strict=True):
        for p, q in zip(group["params"], others["params"], strict=True):
            pairs = [(p, q), *((one.state[p][key], other.state[q][key]) for key in one.state[p])]
            for x, y in pairs:
                x, y = (torch.as_tensor(value).detach().double() for value in (x, y))
                found += ((x - y).abs() / (1e-2 + x.abs())).flatten().tolist()
    return max(found)


def of(name: str, **options: Any) -> Made:
    return lambda model: getattr(torch.optim, name)(model.parameters(), **options)


EXACT = {
    "SGD": of("SGD", lr=0.1),
    "SGD with momentum": of("SGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD with dampening": of("SGD", lr=0.1, momentum=0.9, dampening=0.3, maximize=True),
    "Adam": of("Adam", lr=0.1, amsgrad=True, weight_decay=0.1),
    "Adam without momentum": of("Adam", betas=(0.0, 0.99)),
    "AdamW": of("AdamW", lr=0.1),
    "Adamax": of("Adamax"),
    "Adagrad": of("Adagrad", initial_accumulator_value=0.5, lr_decay=0.01),
    "RMSprop": of("RMSprop"),
    "RMSprop centered": of("RMSprop", momentum=0.9, centered=True),
    "Adadelta": of("Adadelta"),
    "NAdam": of("NAdam", decoupled_weight_decay=True, weight_decay=0.1),
    "Rprop": of("Rprop"),
    "ASGD": of("ASGD", t0=3.0, lambd=0.1, weight_decay=0.1),
    "Muon": lambda model: torch.optim.Muon([p for p in model.parameters() if p.dim() == 2]),
}
CLOSE = {
    "Adafactor": of("Adafactor"),
    "RAdam": of("RAdam", lr=0.1),
    "AdamW fused": of("AdamW", fused=True),
}
"""Those that compute in another order, or have another kernel in eager."""


@pytest.mark.parametrize("name", EXACT | CLOSE)
def test_steps_are_those_of_torch(name: str, tmp_path: Path) -> None:
    made = (EXACT | CLOSE)[name]
    model, loaded = built(tmp_path, made)
    eager, own = made(model), loaded.aotpack.optimizer()
    # torch's fused kernel takes gradients of other strides as if they had the parameter's.
    steps([(model, eager), (loaded, own)], 100, skipped="norm.weight", contiguous=name != "AdamW fused")
    difference = largest_difference(eager, own)
    assert difference == 0 if name in EXACT else difference < 1e-5
    if name != "AdamW fused":
        eager.load_state_dict(own.state_dict())
        own.load_state_dict(eager.state_dict())
        assert largest_difference(eager, own) <= difference


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["SGD with momentum", "AdamW", "Rprop", "Adafactor", "Muon", "ASGD", "RAdam"])
def test_native_steps_are_those_of_torch(name: str, tmp_path: Path) -> None:
    made = (EXACT | CLOSE)[name]
    model, loaded = built(tmp_path, made, target="cpu")
    assert loaded.aotpack.backend.startswith("cpu")
    eager, own = made(model), loaded.aotpack.optimizer()
    versions = [p._version for p in loaded.parameters()]
    steps([(model, eager), (loaded, own)], 100, skipped="norm.weight")
    assert largest_difference(eager, own) < 1e-4
    assert all(p._version > before for p, before in zip(own.param_groups[0]["params"], versions, strict=False))


@pytest.mark.compiled
def test_native_steps_of_half_types(tmp_path: Path) -> None:
    """A step reads all that it needs before it writes: each differs from eager's by rounding alone."""
    made = of("ASGD", lr=0.1)
    model, loaded = built(tmp_path, made, target="cpu", model=Net().bfloat16())
    eager, own = made(model), loaded.aotpack.optimizer()
    for _ in range(4):
        steps([(model, eager), (loaded, own)], 1)
        for p, q in zip(model.parameters(), loaded.parameters(), strict=True):
            state = [(value, own.state[q][key]) for key, value in eager.state[p].items()]
            for x, y in ((p.detach(), q.detach()), *state):
                assert (x - y).abs().max() <= 2 * torch.finfo(torch.bfloat16).eps * x.abs().max()
        loaded.load_state_dict(model.state_dict())
        own.load_state_dict(copy.deepcopy(eager.state_dict()))


class Lion(torch.optim.Optimizer):
    """An optimizer of the user's own, whose state has an integer and is replaced at each step."""

    def __init__(self, params: Any, lr: float = 1e-2, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["count"], state["average"] = 0, torch.zeros_like(p)
                state["count"] += 1
                state["average"] = state["average"] * group["beta"] + p.grad * (1 - group["beta"])
                p -= group["lr"] * state["average"].sign() / state["count"] ** 0.5


class Many(nn.Module):
    """Parameters that native code updates together, and some that it does not: too large, without elements, in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        shapes = [*((i,) for i in range(12)), (70, 80), (3, 2), (90, 50), ()]
        self.many = nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes])
        self.halves = nn.ParameterList([nn.Parameter(torch.randn(i).bfloat16()) for i in (3, 5)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * sum(p.sum() for p in self.many) + self.halves[0].sum()


@pytest.mark.compiled
def test_many_parameters_at_once(tmp_path: Path) -> None:
    """Their step counts differ, and state and memory of some are replaced between steps."""
    made = of("AdamW", lr=0.1)
    eager, module = built(tmp_path, made, target="cpu", model=Many())
    optimizers = made(eager), module.aotpack.optimizer()
    pairs = [*zip((eager, module), optimizers, strict=True)]
    steps(pairs, 3, skipped="many.4")
    for model, optimizer in pairs:
        parameters = dict(model.named_parameters())
        parameters["many.3"].data = parameters["many.3"].data.clone()
        state = optimizer.state[parameters["many.5"]]
        state["exp_avg"] = state["exp_avg"].clone()
    steps(pairs, 3)
    for (name, p), q in zip(eager.named_parameters(), module.named_parameters(), strict=True):
        torch.testing.assert_close((p, optimizers[0].state[p]), (q[1], optimizers[1].state[q[1]]), msg=name)


def test_an_optimizer_of_the_users_own(tmp_path: Path) -> None:
    model, loaded = built(tmp_path, lambda model: Lion(model.parameters()))
    eager, own = Lion(model.parameters()), loaded.aotpack.optimizer()
    steps([(model, eager), (loaded, own)], 7)
    assert largest_difference(eager, own) == 0
    assert own.state[loaded.scale]["count"] == 7


class MasterSGD(torch.optim.Optimizer):
    """Updates a copy in float32, which rounds to the parameter."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                master = self.state[p].setdefault("master", p.to(torch.float32, copy=True))
                master.sub_(p.grad.float(), alpha=group["lr"])
                p.copy_(master)


def test_state_that_begins_as_the_parameter(tmp_path: Path) -> None:
    model, loaded = built(tmp_path, lambda model: MasterSGD(model.parameters()), model=Net().bfloat16())
    eager, own = MasterSGD(model.parameters()), loaded.aotpack.optimizer()
    steps([(model, eager), (loaded, own)], 7, skipped="norm.weight")
    assert largest_difference(eager, own) == 0


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_averages_and_weights_in_float32(target: str, tmp_path: Path) -> None:
    kept = {"ema_decay": 0.75, "master_weights": True}
    model = Net().bfloat16()
    loaded = built(tmp_path, lambda model: aotpack.keep_copies(of("AdamW")(model), **kept), target=target, model=model)[1]
    wide = Net()
    wide.load_state_dict(model.state_dict())
    eager, own = of("AdamW")(wide), loaded.aotpack.optimizer()
    averages = [p.detach().clone() for p in eager.param_groups[0]["params"]]
    generator = torch.Generator().manual_seed(0)
    for i in range(4):
        decay = own.param_groups[0]["ema_decay"] = 0.75 + i / 10
        for p, q in zip(wide.parameters(), loaded.parameters(), strict=True):
            q.grad = torch.randn(p.shape, generator=generator).to(q)
            p.grad = q.grad.float()
        eager.step()
        own.step()
        for average, p in zip(averages, wide.parameters(), strict=True):
            average.lerp_(p.detach(), 1 - decay)
    for average, p, q in zip(averages, wide.parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(own.state[q]["master"], p.detach())
        torch.testing.assert_close(own.state[q]["ema"], average)
        torch.testing.assert_close(own.state[q]["exp_avg"], eager.state[p]["exp_avg"])
        torch.testing.assert_close(q, p.bfloat16(), rtol=0.01, atol=1e-5)


def test_copies_in_eager(tmp_path: Path) -> None:
    """An optimizer that keeps copies is one of torch.optim, whose state a bundle reads."""
    model, loaded = built(tmp_path, lambda model: aotpack.keep_copies(of("SGD", momentum=0.5)(model), ema_decay=0.5))
    eager, own = aotpack.keep_copies(of("SGD", momentum=0.5)(model), ema_decay=0.5), loaded.aotpack.optimizer()
    seen: list[object] = []
    eager.register_step_post_hook(lambda *_: seen.append(None))
    steps([(model, eager)], 2)
    loaded.load_state_dict(model.state_dict())
    own.load_state_dict(copy.deepcopy(eager.state_dict()))
    steps([(model, eager), (loaded, own)], 3, skipped="norm.weight")
    assert largest_difference(eager, own) == 0
    assert len(seen) == 5
    with pytest.raises(BuildError, match=r"nothing is to be kept"):
        aotpack.keep_copies(of("SGD")(model))
    with pytest.raises(BuildError, match=r"ema_decay: is 2, and not from 0 to 1\n.*has state already"):
        aotpack.keep_copies(eager, ema_decay=2)


class Bags(nn.Module):
    """Two embeddings with sparse gradients, of rows that repeat, and a matrix."""

    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.words, self.pairs = nn.Embedding(9, 3, sparse=sparse), nn.EmbeddingBag(7, 3, mode="sum", sparse=sparse)
        self.last = nn.Linear(3, 2)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.words(i).sum(1) + self.pairs(i % 7)).square().sum()
        return y


def of_bags(name: str, **options: Any) -> Made:
    """An optimizer of the embeddings."""
    return lambda model: getattr(torch.optim, name)([*model.words.parameters(), *model.pairs.parameters()], **options)  # type: ignore[operator,union-attr,misc]


SPARSE = {
    "SparseAdam": of_bags("SparseAdam", lr=0.1),
    "SparseAdam, maximize": of_bags("SparseAdam", lr=0.1, maximize=True),
    "SGD": of_bags("SGD", lr=0.1),
    "Adagrad": of_bags("Adagrad", lr=0.1, lr_decay=0.1),
}


@pytest.mark.compiled
@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_gradients(name: str, target: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, out = Bags(), tmp_path / "bags.aotpack"
    example = (torch.randint(7, (2, 4)),)
    aotpack.build(model, example, out=out, targets=(target,), methods=("train",), optimizer=SPARSE[name])
    loaded = aotpack_loader.load(out)
    eager, own = SPARSE[name](model), loaded.aotpack.optimizer(clip_grad_norm=0.5)
    untouched = loaded.words.weight[8].clone()
    for i in range(6):
        example = (torch.randint(7, (2, 4)),)
        for module, optimizer in ((model, eager), (loaded, own)):
            optimizer.zero_grad()
            module(*example).backward()
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (i + 1)
            if optimizer is eager:  # clip_grad_norm_ takes no sparse gradients
                values = [p.grad.coalesce() for p in eager.param_groups[0]["params"]]
                norm = torch.stack([v.values().norm() for v in values]).norm()
                for p, value in zip(eager.param_groups[0]["params"], values, strict=True):
                    p.grad = value * min(1.0, 0.5 / (norm + 1e-6))
            optimizer.step()
    assert largest_difference(eager, own) < 1e-4
    assert torch.equal(loaded.words.weight[8], untouched)
    own.load_state_dict(copy.deepcopy(eager.state_dict()))
    if name.startswith("SparseAdam"):
        loaded.words.weight.grad = torch.ones_like(loaded.words.weight)
        with pytest.raises(InputError, match=r"words.weight.grad: is a torch.float32.*that are sparse"):
            own.step()


@pytest.mark.parametrize(
    ("sparse", "optimizer", "kind"),
    [
        (True, of_bags("AdamW"), "sparse"),
        (True, of_bags("SGD", momentum=0.5), "sparse"),
        (True, of_bags("Adagrad", weight_decay=0.5), "sparse"),
        (True, lambda model: aotpack.keep_copies(of_bags("SGD", lr=0.1)(model), ema_decay=0.5), "sparse"),
        (False, of_bags("SparseAdam"), "dense"),
    ],
)
def test_gradients_that_an_optimizer_does_not_take(sparse: bool, optimizer: Made, kind: str, tmp_path: Path) -> None:
    example = (torch.randint(7, (2, 4)),)
    with pytest.raises(UnsupportedError, match=rf"words.weight: has {kind} gradients"):
        aotpack.build(
            Bags(sparse=sparse),
            example,
            out=tmp_path / "a.aotpack",
            targets=("portable",),
            methods=("train",),
            optimizer=optimizer,
        )


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-2)


def test_groups_schedulers_and_clipping(tmp_path: Path) -> None:
    model, loaded = built(tmp_path, two_groups)
    eager, own = two_groups(model), loaded.aotpack.optimizer()
    assert isinstance(own, torch.optim.Optimizer)
    schedulers = [torch.optim.lr_scheduler.OneCycleLR(one, max_lr=0.1, total_steps=12) for one in (eager, own)]
    x = torch.randn(5, 4)
    for _ in range(6):
        for module, optimizer, scheduler in zip((model, loaded), (eager, own), schedulers, strict=True):
            module(x).square().mean().backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    assert largest_difference(eager, own) < 1e-5  # the gradients are those of two graphs
    assert len(loaded.aotpack.program.optimizers["optimizer"].updates) == 2


def test_gradients_are_clipped_as_torch_does(tmp_path: Path) -> None:
    model, loaded = built(tmp_path, of("SGD", lr=0.1))
    eager, own = torch.optim.SGD(model.parameters(), lr=0.1), loaded.aotpack.optimizer(clip_grad_norm=0.5, clip_grad_value=0.1)
    for limit in (0.5, 0.25, 1e6):
        own.gradients.clip_grad_norm = limit
        for module in (model, loaded):
            module.zero_grad()
            module(torch.ones(5, 4)).sum().backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        eager.step()
        own.step()
        for p, q in zip(model.parameters(), loaded.parameters(), strict=True):
            torch.testing.assert_close((p, p.grad), (q, q.grad))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_whole_steps(accumulate: int, tmp_path: Path) -> None:
    class WithLoss(Net):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return {"loss": y.square().mean(), "y": y}

    model, loaded = built(tmp_path, of("AdamW", lr=0.1), model=WithLoss())
    eager, own = torch.optim.AdamW(model.parameters(), lr=0.1), loaded.aotpack.optimizer(accumulate=accumulate)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (eager, own)]
    for i in range(4 * accumulate):
        x = torch.full((5, 4), float(i))
        expected = model(x)
        (expected["loss"] / accumulate).backward()
        torch.testing.assert_close(own.train_step(x), expected)
        if (i + 1) % accumulate == 0:
            eager.step()
            eager.zero_grad()
            assert all(p.grad is None for p in loaded.parameters())
            for schedule in schedules:
                schedule.step()
    assert largest_difference(eager, own) == 0
    with pytest.raises(InputError, match="accumulate is 0"):
        loaded.aotpack.optimizer(accumulate=0)


def test_gradients_that_are_not_finite(tmp_path: Path) -> None:
    _, loaded = built(tmp_path, of("AdamW", lr=0.1))
    loaded(torch.ones(5, 4)).sum().backward()
    before = loaded.scale.detach().clone()
    loaded.scale.grad.fill_(float("nan"))
    with pytest.raises(InputError, match=r"scale\.grad: has elements that are infinite or NaN"):
        loaded.aotpack.optimizer(nonfinite="raise", clip_grad_norm=1.0).step()
    skipping = loaded.aotpack.optimizer(nonfinite="skip")
    skipping.step()
    assert skipping.skipped == 1
    assert not skipping.state
    assert loaded.scale == before
    loaded.scale.grad.fill_(1.0)
    skipping.step()
    assert skipping.skipped == 1
    assert loaded.scale != before
    with pytest.raises(InputError, match="clip_grad_norm: is -1"):
        loaded.aotpack.optimizer(clip_grad_norm=-1)


def test_half_precision_and_several_optimizers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3).bfloat16(), nn.Linear(3, 4))
    model.forward = lambda x: nn.Module.__call__(model[1], model[0](x.bfloat16()).float())  # type: ignore[method-assign]

    def first(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model[0].parameters(), lr=0.1)  # type: ignore[index]

    def second(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model[1].parameters(), lr=0.1)  # type: ignore[index]

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 3).bfloat16(), nn.Linear(3, 4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[1](self.layers[0](x.bfloat16()).float())  # type: ignore[no-any-return]

        def __getitem__(self, i: int) -> nn.Module:
            return self.layers[i]

    two, loaded = built(tmp_path, {"first": first, "second": second}, model=Two())
    eager, own = first(two), loaded.aotpack.optimizer("first")
    steps([(two.layers[0], eager), (loaded.layers[0], own)], 5)  # type: ignore[list-item]
    assert largest_difference(eager, own) == 0
    with pytest.raises(AotpackError, match="no optimizer 'optimizer'"):
        loaded.aotpack.optimizer()
    with pytest.raises(AotpackError, match=r"no optimizer \[\]"):
        loaded.aotpack.optimizer([])  # type: ignore[arg-type]


def test_a_start_imports_no_compiler(tmp_path: Path, fresh_process: FreshProcess) -> None:
    built(tmp_path, of("AdamW"))
    code = """
        import json, sys, torch, aotpack_loader
        model = aotpack_loader.load(sys.argv[1])
        optimizer = model.aotpack.optimizer(lr=0.1)
        before = [p.detach().clone() for p in model.parameters()]
        model(torch.ones(5, 4)).sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.zero_grad()
        changed = [not torch.equal(p, q) for p, q in zip(model.parameters(), before)]
        compilers = ("torch._dynamo", "torch._inductor", "sympy")
        print(json.dumps([changed, [name for name in sys.modules if name.startswith(compilers)]]))
    """
    changed, imported = fresh_process(code, tmp_path / "net.aotpack", from_nothing=True)
    assert any(changed)
    assert imported == []


@pytest.mark.compiled
def test_from_a_record_and_on_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_RECORDED_STARTS", "1")
    built(tmp_path, of("SGD", lr=0.1), target="cpu")
    for _ in range(2):
        loaded = aotpack_loader.load(tmp_path / "net.aotpack")
        copied = copy.deepcopy(loaded)
        optimizer = copied.aotpack.optimizer()
        assert optimizer.param_groups[0]["params"][0] is next(copied.parameters())
        steps([(copied, optimizer)], 1)
        assert not torch.equal(copied.scale, loaded.scale)


def test_what_is_compiled_in_cannot_change(tmp_path: Path) -> None:
    _, loaded = built(tmp_path, of("SGD", lr=0.1, momentum=0.9))
    with pytest.raises(EditError, match="nesterov: is no number"):
        loaded.aotpack.optimizer(nesterov=True)
    optimizer = loaded.aotpack.optimizer(lr=1)
    steps([(loaded, optimizer)], 1)
    for option, value, text in (
        ("nesterov", True, "built for False"),
        ("momentum", 0.0, "values other than 0"),
        ("weight_decay", 0.1, "0 alone"),
        ("lr", "much", "no number"),
        ("lr", None, "no number"),
    ):
        before = optimizer.param_groups[0][option]
        optimizer.param_groups[0][option] = value
        with pytest.raises(InputError, match=text):
            optimizer.step()
        optimizer.param_groups[0][option] = before
    with pytest.raises(EditError, match="cannot be added"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    for function in (copy.copy, copy.deepcopy):
        with pytest.raises(AotpackError, match="pickled or copied"):
            function(optimizer)


def test_wrong_gradients_change_nothing(tmp_path: Path) -> None:
    _, loaded = built(tmp_path, of("AdamW"))
    optimizer = loaded.aotpack.optimizer()
    with pytest.raises(InputError, match="no parameter has a gradient"):
        optimizer.step()
    steps([(loaded, optimizer)], 1)
    before = [p.detach().clone() for p in loaded.parameters()]
    loaded.first.weight.grad = torch.zeros(3, 4).to_sparse()
    optimizer.state[loaded.scale]["exp_avg"] = torch.zeros(2)
    del optimizer.state[loaded.first.bias]["step"]
    with pytest.raises(InputError) as raised:
        optimizer.step()
    text = str(raised.value)
    for part in ("first.weight.grad: is a sparse", "scale: has torch.float32[2] on cpu as exp_avg", "first.bias: has the state"):
        assert part in text
    assert all(torch.equal(p, q) for p, q in zip(loaded.parameters(), before, strict=True))


@pytest.mark.parametrize("target", ["portable", pytest.param("cpu", marks=pytest.mark.compiled)])
def test_gradients_in_the_memory_of_their_parameters(target: str, tmp_path: Path) -> None:
    _, loaded = built(tmp_path, of("AdamW", lr=0.1), target=target)
    optimizer = loaded.aotpack.optimizer()
    for _ in range(2):  # also once the optimizer knows where the parameter is
        before = loaded.scale.detach().clone()
        loaded.scale.grad = loaded.scale.data
        with pytest.raises(InputError, match=r"scale\.grad: shares memory with the parameter"):
            optimizer.step()
        assert torch.equal(loaded.scale, before)
        loaded.scale.grad = torch.ones_like(loaded.scale)
        optimizer.step()
        loaded.scale.grad = optimizer.state[loaded.scale]["exp_avg"]
        with pytest.raises(InputError, match=r"scale\.grad: shares memory with the parameter or its state"):
            optimizer.step()


def test_state_of_another_optimizer(tmp_path: Path) -> None:
    model, loaded = built(tmp_path, of("AdamW"))
    own, other = loaded.aotpack.optimizer(), torch.optim.SGD(model.parameters(), momentum=0.9)
    steps([(model, other), (loaded, own)], 2)
    before = copy.deepcopy(own.state_dict())
    with pytest.raises(StateError, match="has the state momentum_buffer"):
        own.load_state_dict(other.state_dict())
    with pytest.raises(StateError, match="no state of the optimizer"):
        own.load_state_dict({"state": {}, "param_groups": []})
    after = own.state_dict()
    assert before["param_groups"] == after["param_groups"]
    assert all(torch.equal(x, after["state"][i][key]) for i, state in before["state"].items() for key, x in state.items())


@pytest.mark.parametrize(
    "change",
    [
        lambda _: 5,
        lambda saved: saved | {"state": None},
        lambda saved: saved | {"state": saved["state"] | {0: 5}},
        lambda saved: saved | {"state": saved["state"] | {0: {"exp_avg": torch.ones(3, 4, device="meta")}}},
        lambda saved: saved | {"param_groups": [saved["param_groups"][0] | {"lr": 10**400}]},
        lambda saved: saved | {"param_groups": [saved["param_groups"][0] | {"amsgrad": torch.ones(2)}]},
    ],
)
def test_what_is_no_state_changes_nothing(change: Any, tmp_path: Path) -> None:
    _, loaded = built(tmp_path, of("AdamW"))
    own = loaded.aotpack.optimizer()
    steps([(loaded, own)], 1)
    before = copy.deepcopy(own.state_dict())
    with pytest.raises(AotpackError, match=r"no state of the optimizer|compiled into the bundle"):
        own.load_state_dict(change(copy.deepcopy(before)))
    assert str(own.state_dict()) == str(before)


def test_state_of_another_type_than_its_parameter_is_read(tmp_path: Path) -> None:
    """torch converts it to the type of the parameter."""
    out = tmp_path / "net.aotpack"
    model, x = Net().bfloat16(), torch.randn(5, 4, dtype=torch.bfloat16)
    made = lambda model: MasterSGD(model.parameters())  # noqa: E731
    aotpack.build(model, (x,), out=out, targets=("portable",), methods=("train",), optimizer=made)
    loaded = aotpack_loader.load(out)
    own, other = loaded.aotpack.optimizer(), loaded.aotpack.optimizer()
    steps([(loaded, own)], 2)
    other.load_state_dict(copy.deepcopy(own.state_dict()))
    assert largest_difference(own, other) == 0
    assert [str(own.state_dict())] == [str(other.state_dict())]


def test_complex_and_empty_parameters(tmp_path: Path) -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))
            self.empty = nn.Parameter(torch.zeros(0, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.to(torch.complex64) @ self.weight).abs().sum() + self.empty.sum()

    made = of("AdamW", lr=0.1)
    model, loaded = built(tmp_path, made, model=Spectral())
    eager, own = made(model), loaded.aotpack.optimizer(nonfinite="raise", clip_grad_norm=0.5)
    for _ in range(3):
        for module in (model, loaded):
            module.weight.grad, module.empty.grad = torch.full((3, 3), 1 + 2j), torch.zeros(0, 3)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        eager.step()
        own.step()
    assert torch.equal(model.weight, loaded.weight)
    own.gradients.clip_grad_value = 1.0
    with pytest.raises(InputError, match=r"weight\.grad: is complex"):
        own.step()
    own.gradients.nonfinite = "other"
    with pytest.raises(InputError, match="nonfinite: is 'other'"):
        own.step()


def test_gradients_that_cannot_be_clipped(tmp_path: Path) -> None:
    _, loaded = built(tmp_path, of("AdamW"))
    steps([(loaded, loaded.aotpack.optimizer())], 1)
    loaded.norm.bias.grad = torch.ones(1).expand(3)
    before = [p.grad.clone() for p in loaded.parameters()]
    with pytest.raises(InputError, match=r"norm\.bias\.grad: is expanded"):
        loaded.aotpack.optimizer(clip_grad_norm=1e-3).step()
    assert all(torch.equal(p.grad, gradient) for p, gradient in zip(loaded.parameters(), before, strict=True))


def test_steps_in_other_modes(tmp_path: Path) -> None:
    """State that begins in inference mode is written to outside of it; a default device does not matter."""
    made = of("AdamW", lr=0.1)
    model, loaded = built(tmp_path, made)
    eager, own = made(model), loaded.aotpack.optimizer()
    for p, q in zip(model.parameters(), loaded.parameters(), strict=True):
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    eager.step()
    eager.step()
    with torch.inference_mode(), torch.device("meta"):
        own.step()
    own.step()
    assert largest_difference(eager, own) == 0


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda optimizer, _: optimizer["groups"][0]["options"].pop("lr"), "numbers are options of the group"),
        (lambda optimizer, _: optimizer["groups"][0]["options"].update(betas=1), "numbers are options of the group"),
        (lambda _, method: method["mutations"][0].update(primal=99), "C8: index 99"),
        (
            lambda optimizer, _: optimizer["updates"][0]["initial"].update(exp_avg={"type": "float", "value": 1e308}),
            "cannot begin",
        ),
    ],
)
def test_hostile_documents(edit: Any, text: str, tmp_path: Path) -> None:
    built(tmp_path, of("AdamW"))
    documents = Documents(tmp_path / "net.aotpack")
    edit(documents.program["optimizers"]["optimizer"], documents.program["methods"]["optimizer.0"])
    (tmp_path / "hostile.aotpack").write_bytes(tar(list(documents.files().items())))
    with pytest.raises(CorruptBundleError, match=text):  # noqa: PT012
        loaded = aotpack_loader.load(tmp_path / "hostile.aotpack")
        before = [p.detach().clone() for p in loaded.parameters()]
        optimizer = loaded.aotpack.optimizer()
        try:
            steps([(loaded, optimizer)], 1)
        finally:
            assert not optimizer.state
            assert all(torch.equal(p, q) for p, q in zip(loaded.parameters(), before, strict=True))


def test_replaced_parameters_are_refused(tmp_path: Path) -> None:
    _, loaded = built(tmp_path, of("AdamW"))
    optimizer = loaded.aotpack.optimizer()
    steps([(loaded, optimizer)], 1)
    loaded.first.weight.data = loaded.first.weight.data.double()
    loaded.first.weight.grad = loaded.first.weight.data.clone()
    with pytest.raises(InputError, match=r"first.weight: is of torch.float64"):
        optimizer.step()
    with pytest.raises(EditError, match=r"first.weight: is of torch.float64"):
        loaded.aotpack.optimizer()


class Strange(torch.optim.SGD):
    """Its state begins with the gradient, in another way than SGD's."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            if "kept" not in self.state[p]:
                self.state[p]["kept"] = p.grad.clone()
            p -= self.state[p]["kept"]


class Normed(torch.optim.SGD):
    """Its step divides by the norm of all gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [p for p in self.param_groups[0]["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        for p in parameters:
            p -= p.grad / norm


class Counting(torch.optim.SGD):
    """It counts its steps in the group."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["dampening"] += 1
            for p in (p for p in group["params"] if p.grad is not None):
                p -= p.grad / group["dampening"]


class Failing(torch.optim.SGD):
    """Its step raises."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("optimizer", "text"),
    [
        (of("LBFGS"), "several times"),
        (lambda model: torch.optim.SGD([nn.Parameter(torch.ones(7))]), r"not the model's, of shapes \[7\]"),
        (lambda model: None, "NoneType, no torch.optim.Optimizer"),
        (lambda model: torch.optim.AdamW(model.parameters(), lr=-1), "Invalid learning rate"),
        ({"a": of("SGD"), "b": of("SGD")}, "as a does"),
        (lambda model: Strange(model.parameters()), "other values before the first step"),
        (lambda model: Normed(model.parameters()), "from more than its gradient and its state"),
        (lambda model: Counting(model.parameters()), "from more than its gradient and its state"),
        (of("Adam", differentiable=True), "differentiable is set"),
        (lambda model: Failing(model.parameters()), r"fails in eager for a parameter of sizes \[\]\.\n  ZeroDivisionError"),
    ],
)
def test_optimizers_that_cannot_be_built(optimizer: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises((BuildError, UnsupportedError), match=text):
        built(tmp_path, optimizer)
    assert not (tmp_path / "net.aotpack").exists()


def test_a_function_has_no_optimizer(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"Only a torch\.nn\.Module"):
        aotpack.build(torch.sin, (torch.ones(2),), out=tmp_path / "a.aotpack", targets=("portable",), optimizer=of("SGD"))


ENTRY = """
import torch

def model():
    return torch.nn.Linear(4, 3)

def example_inputs():
    return (torch.ones(2, 4),)

def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.25)
"""


@pytest.mark.parametrize(
    ("words", "kind", "options"),
    [
        ((), "SGD", {"lr": 0.25}),
        (("--optimizer", "adamw", "--lr", "0.5", "--optimizer-option", "betas=(0.5, 0.75)"), "AdamW", {"betas": (0.5, 0.75)}),
        (("--optimizer", "sgd", "--ema-decay", "0.9", "--master-weights"), "SGD", {"ema_decay": 0.9}),
    ],
)
def test_the_command_takes_an_optimizer(words: tuple[str, ...], kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(ENTRY)
    out = tmp_path / "a.aotpack"
    asked = ["build", str(tmp_path / "model.py"), "-o", str(out), "--target", "portable", "--method", "train", *words]
    assert CliRunner().invoke(main, asked).exit_code == 0
    loaded = aotpack_loader.load(out)
    assert loaded.aotpack.program.optimizers["optimizer"].name == kind
    assert loaded.aotpack.optimizer().param_groups[0].items() >= options.items()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--optimizer", "adamv"), "no optimizer 'adamv'"),
        (("--optimizer", "adamw", "--optimizer-option", "beta=1"), "AdamW has no such option"),
        (("--lr", "0.1"), "need --optimizer"),
        (("--master-weights",), "need --optimizer"),
        (("--optimizer", "adamw", "--optimizer-option", "eps"), "not NAME=VALUE"),
    ],
)
def test_what_the_command_refuses(words: tuple[str, ...], text: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(ENTRY)
    asked = ["build", str(tmp_path / "model.py"), "-o", str(tmp_path / "a.aotpack"), "--target", "portable", *words]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code != 0
    assert text in " ".join(result.output.split()) + str(result.exception)


def test_what_inspect_and_diff_say(tmp_path: Path) -> None:
    built(tmp_path, of("AdamW", lr=0.25))
    (tmp_path / "net.aotpack").rename(tmp_path / "first.aotpack")
    built(tmp_path, of("AdamW", lr=0.5))
    (tmp_path / "net.aotpack").rename(tmp_path / "second.aotpack")
    built(tmp_path, of("SGD", lr=0.25))
    inspected = CliRunner().invoke(main, ["inspect", str(tmp_path / "first.aotpack")]).output
    assert "optimizer  AdamW" in inspected
    assert "exp_avg float32, any size" in inspected
    assert "can change: betas, eps, lr, weight_decay" in inspected.replace("\n", " ").replace("  ", " ")
    page = tmp_path / "page.html"
    assert CliRunner().invoke(main, ["inspect", str(tmp_path / "first.aotpack"), "--html", str(page)]).exit_code == 0
    assert "can change: betas" in page.read_text()
    diff = CliRunner().invoke(main, ["diff", str(tmp_path / "first.aotpack"), str(tmp_path / "second.aotpack")]).output
    assert "group 0: lr is 0.5, before 0.25" in diff
    other = CliRunner().invoke(main, ["diff", str(tmp_path / "first.aotpack"), str(tmp_path / "net.aotpack")]).output
    assert "AdamW is now SGD" in other
    assert "Checkpoints of the first bundle do not fit the second" in other


def test_an_entry_with_a_wrong_optimizer(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        ENTRY.replace("def optimizer(model):\n    return", "optimizer =").replace("model.parameters()", "model().parameters()")
    )
    result = CliRunner().invoke(
        main, ["build", str(tmp_path / "model.py"), "-o", str(tmp_path / "a.aotpack"), "--target", "portable"]
    )
    assert result.exit_code != 0
    assert "is a SGD, not a function of the model" in " ".join(result.output.split()) + str(result.exception)

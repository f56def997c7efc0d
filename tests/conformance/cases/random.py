"""Random numbers of rng="eager", regions that draw again, effects and custom operators."""

from __future__ import annotations

import random
from collections.abc import Callable
from random import random as drawn_in_python
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributions, nn
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch.export import Dim
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from devtools.harness import INFER, TRAIN, Call, Case, case, g, inputs, module_case, t

LOG: list[tuple[str, float]] = []
"""What the effectful operators below have done."""


@torch.library.custom_op("aotpack_conformance::logged", mutates_args=())
def logged(x: Tensor, tag: str) -> Tensor:
    LOG.append((tag, round(float(x.sum()), 4)))
    return x.clone()


@torch.library.custom_op("aotpack_conformance::noted", mutates_args=())
def noted(x: Tensor, tag: str) -> None:
    LOG.append((tag, 0.0))


@torch.library.custom_op("aotpack_conformance::halves", mutates_args=())
def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x / 2, x.round().to(torch.int64)


@torch.library.custom_op("aotpack_conformance::jitter", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def jitter(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


@torch.library.custom_op("aotpack_conformance::filled", mutates_args=("x",))
def filled(x: Tensor, value: float) -> None:
    x.fill_(value)


filled.register_fake(lambda x, value: None)
logged.register_fake(lambda x, tag: torch.empty_like(x))
noted.register_fake(lambda x, tag: None)
halves.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)))
jitter.register_fake(torch.empty_like)
logged.register_autograd(lambda ctx, gradient: (logged(gradient, "backward"), None))
halves.register_autograd(lambda ctx, gradient, _: gradient / 2)
jitter.register_autograd(lambda ctx, gradient: gradient)
_register_effectful_op(torch.ops.aotpack_conformance.logged.default, _EffectType.ORDERED)
_register_effectful_op(torch.ops.aotpack_conformance.noted.default, _EffectType.ORDERED)


# ---------------------------------------------------------------- functions of autograd


class NoisyBackward(torch.autograd.Function):
    """Draws in the forward and in the backward, there also what needs no tangent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        noise = torch.rand_like(x)
        ctx.save_for_backward(noise)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (noise,) = ctx.saved_tensors
        return gradient * torch.rand(4, 5) + torch.randn_like(gradient) + noise


class UnusedInBackward(torch.autograd.Function):
    """Draws in the backward what nobody uses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        torch.rand(3)
        return gradient * 2


class WithSetup(torch.autograd.Function):
    """A separate ``setup_context``, and a result without a gradient."""

    @staticmethod
    def forward(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        return x * scale, x.argmax(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0])
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradient * ctx.scale * x, None


# ---------------------------------------------------------------- models


class Checkpointed(nn.Module):
    """Dropout inside and outside checkpointed regions."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def block(self, layer: nn.Module, x: Tensor) -> Tensor:
        return F.dropout(torch.tanh(layer(F.dropout(x, 0.3, self.training))), 0.5, self.training)

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.block, self.first, x, use_reentrant=False, **self.options)
        x = F.dropout(x, 0.2, self.training)
        return checkpoint(self.block, self.second, x, use_reentrant=False, **self.options).sin()


class Recurrent(nn.Module):
    """Dropout between recurrent layers, which torch's decomposition forgets."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.layers = kind(4, 5, num_layers=3, dropout=0.4, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)[0]


def unused(x: Tensor) -> Tensor:
    torch.rand(3)
    y = F.dropout(x, 0.5, True)
    F.dropout(y, 0.5, True)
    torch.bernoulli(y.detach().sigmoid())
    y = y * torch.rand(5)
    torch.randint(0, 9, (2,))
    return y


def equal_calls(x: Tensor) -> Tensor:
    """Equal calls draw different numbers: none may be merged."""
    first = [
        torch.empty_like(x).exponential_(),
        torch.empty_like(x).uniform_(),
        torch.randn_like(x),
        torch.empty_like(x).cauchy_(),
    ]
    second = [
        torch.empty_like(x).exponential_(),
        torch.empty_like(x).uniform_(),
        torch.randn_like(x),
        torch.empty_like(x).cauchy_(),
    ]
    return x * sum(a - b for a, b in zip(first, second, strict=True))


def many(x: Tensor) -> Tensor:
    y = torch.rand(4, 5) * torch.randn(4, 5) + torch.rand_like(x) * torch.randn_like(x) + torch.randint(3, 9, (4, 5))
    y = (
        y
        + torch.randint_like(x, 2, 9)
        + torch.normal(x, 2.0)
        + torch.normal(1.0, x.detach().exp())
        + torch.poisson(x.detach().exp())
    )
    y = y + torch.bernoulli(x.detach().sigmoid()) + torch.binomial(torch.full((4, 5), 7.0), x.detach().sigmoid())
    y = y + torch.empty_like(x).geometric_(0.3) + torch.empty_like(x).log_normal_() + torch.empty_like(x).random_(9)
    y = y + torch.empty_like(x).normal_() + torch._standard_gamma(x.exp()) + F.rrelu(x, 0.1, 0.3, True) + F.gumbel_softmax(x)
    y = y + F.dropout(x, 0.3, True) + F.alpha_dropout(x, 0.3, True) + F.feature_alpha_dropout(x[None], 0.3, True)[0]
    return y[torch.randperm(4)] + x[:, torch.multinomial(x.detach().softmax(1)[0], 5)]


def samplers(x: Tensor) -> tuple[Tensor, ...]:
    """Their gradients have kernels of their own."""
    positive = x.exp()
    drawn = distributions.Binomial(10, logits=x).sample()
    return distributions.Gamma(positive, 1.0).rsample(), distributions.Dirichlet(positive).rsample(), drawn * x


_LARGER = Call(2, inputs=inputs(g(6, 5)))


def other_strides(x: Tensor) -> Tensor:
    """What is filled in the order of memory."""
    y = x.t()
    return (
        torch.empty_like(y).uniform_() * y
        + torch.empty_like(y).bernoulli_(0.3) * y
        + F.dropout(y, 0.5, True)
        + torch.randn_like(y)
        + torch.bernoulli(y.detach(), 0.4)
        + F.alpha_dropout(y, 0.5, True)
    )


def with_seed(x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return F.dropout(x, 0.5, True)


def with_new_seed(x: Tensor) -> Tensor:
    torch.seed()
    return x * 2


def with_state(x: Tensor) -> Tensor:
    state = torch.get_rng_state()
    y = F.dropout(x, 0.5, True)
    torch.set_rng_state(state)
    return y * F.dropout(x, 0.5, True)


def with_fork(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        y = F.dropout(x, 0.5, True)
    return y * F.dropout(x, 0.5, True)


def with_generator(x: Tensor) -> Tensor:
    return x * torch.rand(5, generator=torch.Generator().manual_seed(1))


def with_filled(x: Tensor) -> Tensor:
    y = torch.zeros(3)
    filled(y, 2.0)
    return x * y


@torch.library.custom_op("aotpack_conformance::mixed", mutates_args=("x", "more"))
def mixed(x: Tensor, more: list[Tensor], scale: Tensor) -> Tensor:
    """Writes to a tensor and to a list of them, and has a result."""
    x.add_(scale)
    for item in more:
        item.mul_(2)
    return x * 2


@mixed.register_fake
def _(x: Tensor, more: list[Tensor], scale: Tensor) -> Tensor:
    return torch.empty_like(x)


torch.library.define("aotpack_conformance::bumped", "(Tensor(a!) x) -> Tensor(a!)")
torch.library.impl("aotpack_conformance::bumped", "CompositeExplicitAutograd", lambda x: x.add_(1))


def with_mixed(x: Tensor, y: Tensor) -> Tensor:
    first, more = y * 1, [y * 2, y * 3]
    result = mixed(first, more, y)
    return x * first + more[0] * more[1].sin() + result


def with_a_filled_part(x: Tensor) -> Tensor:
    y = torch.ones(2, 6)
    filled(y[:, 1:4], 2.0)
    return x * y.sum()


def fills_its_argument(x: Tensor, y: Tensor) -> Tensor:
    filled(y, 2.0)
    return x * y


def fills_a_part_of_its_argument(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    filled(y[1:], 2.0)
    return x * y, y[:2]


def reads_what_it_writes(x: Tensor, y: Tensor) -> Tensor:
    z = y * 2
    return x * mixed(z[:2], [], z[1:])


class WrittenInBackward(torch.autograd.Function):
    """A custom operator writes in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        scale = torch.zeros_like(gradient)
        filled(scale, 3.0)
        return gradient * scale


def effects(x: Tensor) -> Tensor:
    y = logged(x, "a")
    noted(x, "b")
    z = logged(x * 2, "c")
    noted(z, "d")
    logged(x.sin(), "e")
    return y.sin() + z


def effects_and_draws(x: Tensor) -> Tensor:
    return logged(F.dropout(x, 0.5, True), "a") * torch.rand(5) + logged(torch.randn_like(x) * x, "b")


def in_order(model: Any, args: Any, kwargs: Any) -> Any:
    """What the operators did, in the forward and in the backward, and the gradient."""
    LOG.clear()
    result = model(*args)
    forward = list(LOG)
    result.sum().backward()
    return forward, list(LOG), result, args[0].grad, torch.rand(2)


def drawing(name: str, function: Callable[..., Any], *specs: Any, **options: Any) -> Case:
    return case(f"RNG: {name}", function, *(specs or (g(4, 5),)), rng="eager", **{"calls": (TRAIN, Call(3)), **options})


def layer(name: str, make: Callable[[], nn.Module], *specs: Any, **options: Any) -> Case:
    return module_case(f"RNG: {name}", make, *specs, rng="eager", **{"calls": (TRAIN, Call(3)), **options})


def attention() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)


class Policy(nn.Module):
    """An actor as PPO trains it; distributions check their arguments by default."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.mean, self.log_std, self.kind = nn.Linear(3, 4), nn.Parameter(torch.zeros(4)), kind

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        logits = self.mean(x)
        policy: torch.distributions.Distribution = {
            "Normal": lambda: torch.distributions.Normal(logits, self.log_std.exp()),
            "Categorical": lambda: torch.distributions.Categorical(logits=logits),
            "MultivariateNormal": lambda: torch.distributions.MultivariateNormal(logits, torch.diag_embed(self.log_std.exp())),
        }[self.kind]()
        action = policy.sample()
        return action, policy.log_prob(action), policy.entropy()


CASES: list[Case] = [
    *[
        module_case(f"distributions: {kind}", lambda kind=kind: Policy(kind), t(5, 3), rng="eager")
        for kind in ("Normal", "Categorical", "MultivariateNormal")
    ],
    drawing("every operator that draws", many),
    drawing("equal calls are not merged", equal_calls),
    drawing("other strides", other_strides, g(4, 5)),
    drawing("samplers over a batch that varies", samplers, dynamic_shapes={"x": {0: Dim.DYNAMIC}}, calls=(TRAIN, _LARGER)),
    drawing("samplers, cpu", samplers, targets=("cpu",)),
    drawing("unused draws are drawn", unused),
    drawing("unused draws are drawn, without gradients", unused, t(4, 5), calls=(TRAIN, INFER)),
    drawing("dropout that keeps nothing draws nothing", lambda x: F.dropout(x, 1.0, True) + torch.rand(5)),
    drawing("dropout that keeps all draws nothing", lambda x: F.dropout(x, 0.0, True) + torch.rand(5)),
    drawing("dropout of nothing", lambda x: F.dropout(x, 0.5, True) * 2, g(0, 5)),
    drawing(
        "dropout of whole channels",
        lambda x: F.feature_alpha_dropout(x, 0.5, True) + F.dropout2d(x, 0.5, True) + F.dropout3d(x[None], 0.5, True)[0],
        g(3, 4, 2, 2),
    ),
    drawing("dropout in place, bfloat16", lambda x: F.dropout(x.bfloat16() * 2, 0.5, True, inplace=True)),
    drawing("fractional pooling", lambda x: F.fractional_max_pool2d(x, 2, output_size=(3, 3)), g(2, 3, 8, 8)),
    drawing("an argument filled in place", lambda x: x.uniform_() * 2, t(4, 5)),
    drawing("a function that draws in its backward", lambda x: F.dropout(NoisyBackward.apply(NoisyBackward.apply(x)), 0.5, True)),
    drawing("a function that draws in its backward for nobody", lambda x: F.dropout(UnusedInBackward.apply(x), 0.5, True)),
    drawing("a custom operator that draws", lambda x: jitter(x) * F.dropout(x, 0.5, True) - jitter(x)),
    layer("attention with dropout", attention, g(2, 3, 8)),
    layer("LSTM with dropout", lambda: Recurrent(nn.LSTM, bidirectional=True, batch_first=True), g(2, 3, 4)),
    layer("GRU with dropout", lambda: Recurrent(nn.GRU, bidirectional=True), g(3, 2, 4)),
    layer("RNN with dropout", lambda: Recurrent(nn.RNN), g(3, 2, 4)),
    layer("checkpoint with dropout", Checkpointed, g(3, 4)),
    layer("checkpoint without the state", lambda: Checkpointed(preserve_rng_state=False), g(3, 4)),
    module_case("RNG default: checkpoint with dropout", Checkpointed, g(3, 4), calls=(TRAIN, Call(3))),
    module_case("RNG default: LSTM with dropout", lambda: Recurrent(nn.LSTM), g(3, 2, 4), calls=(TRAIN,)),
    case("RNG default: equal calls are not merged", equal_calls, g(4, 5), calls=(TRAIN,)),
    drawing("torch.manual_seed in the model", with_seed),
    drawing("torch.seed in the model", with_new_seed),
    drawing("torch.initial_seed in the model", lambda x: x * (torch.initial_seed() % 7)),
    drawing("the state got and set in the model", with_state),
    drawing("fork_rng in the model", with_fork),
    drawing("a generator of the model's own", with_generator),
    drawing("Python's random", lambda x: x * random.uniform(1, 2)),
    drawing("Python's random, by another name", lambda x: x * drawn_in_python()),
    drawing("NumPy's random", lambda x: x * np.random.rand()),
    drawing("NumPy's random, an array", lambda x: x * torch.from_numpy(np.random.rand(4, 5)).float()),
    case("effects: order in forward and backward", effects, g(4, 5), calls=(Call(1, act=in_order), Call(2, act=in_order))),
    case("effects: without gradients", effects, t(4, 5)),
    drawing("effects between draws", effects_and_draws, calls=(Call(1, act=in_order),)),
    case("effects: torch's print operator", lambda x: [torch._higher_order_ops.print("{}", 3), x * 2][1], g(3)),
    case("custom operators: two results, one without a gradient", lambda x: halves(x * 2), g(4, 5)),
    case("custom operators: writes to its argument", with_filled, g(3)),  # G9
    case("custom operators: writes to its argument, cpu", fills_a_part_of_its_argument, g(3), t(3), targets=("cpu",)),
    case("custom operators: writes to several, with a result", with_mixed, g(3), t(3)),
    case("custom operators: writes to several, with a result, cpu", with_mixed, g(3), t(3), targets=("cpu",)),
    case("custom operators: writes to a part of a tensor", with_a_filled_part, g(3)),
    case("custom operators: writes to an input", fills_its_argument, g(3), t(3)),
    case("custom operators: writes to a part of an input", fills_a_part_of_its_argument, g(3), t(3)),
    case("custom operators: writes in a backward", WrittenInBackward.apply, g(3), calls=(TRAIN,)),
    case("custom operators: writes to what it also reads", reads_what_it_writes, g(2), t(3)),
    case("custom operators: writes to an argument that is returned", lambda x: torch.ops.aotpack_conformance.bumped(x * 2), g(2)),
    case("custom operators: a function with setup_context", lambda x: WithSetup.apply(x, 3.0), g(4, 5)),
    case(
        "custom operators: torch's own, registered at its first use",
        lambda x, weight: nn.functional.linear_cross_entropy(
            x, weight, torch.arange(6) % 4, reduction="none", options=nn.LinearCrossEntropyOptions()
        ),
        g(6, 3),
        g(4, 3),
    ),
]

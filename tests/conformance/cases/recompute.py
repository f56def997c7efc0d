"""Activation checkpoints, and the cases of the notebook that the project was created from."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

from devtools.harness import TRAIN, Call, Case, Given, case, g, inputs, module_case, n, t

apart = functools.partial(checkpoint, use_reentrant=False)
BOTH_MODES = (TRAIN, Call(2), Call(3, training=False, grad=False))


class Checkpointed(nn.Module):
    """Two layers, each in a checkpoint with ``options``."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 2)
        self.options = {"use_reentrant": False, **options}

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(lambda x: self.first(x).sin().exp(), x, **self.options)
        return checkpoint(lambda x: self.second(x).cos(), hidden, **self.options)


def saving(*operators: Any) -> Any:
    return functools.partial(create_selective_checkpoint_contexts, list(operators))


def deciding(policy: CheckpointPolicy) -> Any:
    return functools.partial(create_selective_checkpoint_contexts, lambda ctx, op, *args, **kwargs: policy)


def nested(x: Tensor) -> Tensor:
    return apart(lambda x: apart(lambda x: x.sin().exp(), x).cos() * x, x)


def with_keywords(x: Tensor, y: Tensor) -> Tensor:
    return apart(lambda x, *, scale: (x * scale).sin(), x, scale=y)


def several_results(x: Tensor) -> Any:
    return apart(lambda x: {"a": x.sin().exp(), "b": [x * 2, x.detach()], "n": 3}, x)


def closure(x: Tensor, y: Tensor) -> Tensor:
    return apart(lambda x: (x * y).sin().exp() * y, x)


def view_of_the_input(x: Tensor) -> Any:
    return apart(lambda x: x.view(-1), x), x * 2


def mutates_a_local(x: Tensor) -> Tensor:
    return apart(lambda x: x.sin().mul_(2).exp(), x)


def partly(x: Tensor) -> Tensor:
    return apart(torch.sin, x.exp()).cos() + x.exp()


def reentrant(x: Tensor) -> Tensor:
    return checkpoint(lambda x: x.sin().exp(), x, use_reentrant=True)


class Sequential(nn.Module):
    """A chain in two checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint_sequential(self.layers, 2, x, use_reentrant=False)


class Counting(nn.Module):
    """BatchNorm in a checkpoint: eager updates its statistics in the forward, and again in the recomputation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return apart(self.layers, x)


# ---------------------------------------------------------------- the notebook


def layers(a: Tensor, w: Tensor) -> Tensor:
    """A simple function containing a few layers."""
    a = torch.sin(a)
    a = a @ w
    a = torch.cos(a)
    a = a @ w
    return torch.sigmoid(a)


def printing_layers(a: Tensor, w: Tensor) -> Tensor:
    print("a:", type(a), a.shape)
    return layers(a, w)


def multiplied(a: Tensor, w: Tensor, *, clone: bool) -> Any:
    """Outputs that alias: "the extracted AOT autograd graph is missing outputs"."""
    a = a @ w
    w = a
    return a, w.clone() if clone else w


def recurrent(carry: dict[str, Tensor], x: dict[str, Tensor]) -> Any:
    """Two pytrees, used in another order than they are given in: Dynamo calls ``x`` before ``carry``."""
    weights, biases = x["weights"], x["biases"]
    a, b = carry["a"], carry["b"]
    a = torch.sin((a @ weights) + biases)
    b = torch.cos((b @ weights) + biases)
    return {"a": a, "b": b}, torch.sigmoid(a + b)


def two_pytrees(gen: torch.Generator) -> Any:
    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, generator=gen).requires_grad_()

    return ({"a": leaf(2, 3), "b": leaf(2, 3)}, {"weights": leaf(3, 3), "biases": leaf(2, 3)}), {}


def two_pytrees_by_name(gen: torch.Generator) -> Any:
    (carry, x), _ = two_pytrees(gen)
    return (), {"x": x, "carry": carry}


def flat(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> Any:
    """The same, of arguments flattened by hand."""
    carry, out = recurrent({"a": x, "b": y}, {"weights": z, "biases": w})
    return *carry.values(), out


NOTEBOOK: list[Case] = [
    case("notebook: a function of a few layers", layers, g(4, 4), t(4, 4)),
    case("notebook: it prints while it is traced", printing_layers, g(4, 4), t(4, 4)),
    case("notebook: in a non-reentrant checkpoint", lambda a, w: apart(layers, a, w), g(4, 4), t(4, 4)),
    case("notebook: in a reentrant checkpoint", lambda a, w: checkpoint(layers, a, w, use_reentrant=True), g(4, 4), t(4, 4)),
    case("notebook: return a, w with w = a", functools.partial(multiplied, clone=False), g(4, 4), g(4, 4)),
    case("notebook: return a, w.clone() with w = a", functools.partial(multiplied, clone=True), g(4, 4), g(4, 4)),
    case("notebook: carry before x, dictionary by dictionary", recurrent, Given(two_pytrees), calls=BOTH_MODES),
    case(
        "notebook: carry before x, called by name in another order",
        recurrent,
        Given(two_pytrees),
        calls=(TRAIN, Call(2, inputs=Given(two_pytrees_by_name))),
    ),
    case("notebook: carry before x, flattened by hand", flat, g(2, 3), g(2, 3), g(3, 3), g(2, 3)),
]

CASES: list[Case] = [
    module_case("recompute: non-reentrant", Checkpointed, t(4, 3), calls=BOTH_MODES),
    module_case("recompute: without its random state", lambda: Checkpointed(preserve_rng_state=False), t(4, 3)),
    module_case("recompute: without early stop", lambda: Checkpointed(early_stop=False), t(4, 3)),
    module_case("recompute: without the determinism check", lambda: Checkpointed(determinism_check="none"), t(4, 3)),
    module_case(
        "recompute: selective, a list of operators",
        lambda: Checkpointed(context_fn=saving(torch.ops.aten.addmm.default)),
        t(4, 3),
        calls=BOTH_MODES,
    ),
    *[
        module_case(f"recompute: selective, {policy.name}", functools.partial(Checkpointed, context_fn=deciding(policy)), t(4, 3))
        for policy in CheckpointPolicy
    ],
    module_case("recompute: reentrant, of a module", lambda: Checkpointed(use_reentrant=True), g(4, 3), calls=BOTH_MODES),
    module_case(
        "recompute: reentrant, no argument requires grad", lambda: Checkpointed(use_reentrant=True), t(4, 3), calls=BOTH_MODES
    ),
    case("recompute: reentrant, of a function", reentrant, n(3)),
    case("recompute: nested", nested, g(3)),
    case("recompute: keyword arguments", with_keywords, g(3), g(3)),
    case("recompute: several results", several_results, g(3)),
    case("recompute: closes over an argument", closure, g(3), g(3)),
    case("recompute: a view of the input as result", view_of_the_input, n(2, 3)),
    case("recompute: an in-place operation inside", mutates_a_local, g(3)),
    case("recompute: beside what is saved", partly, g(3)),
    module_case("recompute: checkpoint_sequential", Sequential, g(4, 3)),
    module_case("recompute: BatchNorm inside", Counting, t(4, 3), ignore="version counter"),
    case(
        "recompute: dynamic batch",
        lambda x: apart(lambda x: x.sin().exp() * x.shape[0], x),
        g(4, 3),
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        calls=(TRAIN, Call(2, inputs=inputs(g(7, 3))), Call(2, inputs=inputs(g(1, 3)))),
    ),
    case(
        "recompute: a size that depends on data", lambda x: apart(lambda x: x[x > 0].exp().sin(), x), g(6), calls=(TRAIN, Call(2))
    ),
    *NOTEBOOK,
]

"""How a model is called: names, orders, defaults, containers and types of arguments."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from devtools.harness import TRAIN, Call, Case, Given, case, const, g, inputs, t

from .shapes import at


def keywords(x: Tensor, y: Tensor, *, scale: float = 2.0, z: Tensor | None = None) -> Tensor:
    return x * scale + y - (0 if z is None else z)


def carry(carry: dict[str, Tensor], x: dict[str, Tensor]) -> Any:
    return {"w": carry["w"] + x["a"], "b": carry["b"] * x["a"]}, carry["w"].sum() - x["z"].sum()


def with_alias(carry: Tensor, x: Tensor) -> Any:
    a = carry.sin() * x
    w = a
    return a, w


def with_carry_alias(carry: dict[str, Tensor], x: Tensor) -> Any:
    a = carry["w"]
    return a, carry["w"] * x, carry


def variadic(*xs: Tensor, **named: Tensor) -> Tensor:
    return sum(xs) + named["b"] * 2 - named["a"]  # type: ignore[return-value]


def flag(x: Tensor, double: bool = False, mode: str = "a", power: int = 2) -> Tensor:
    return (x**power) * (2 if double else 1) + (1 if mode == "a" else 0)


def dicts(z: int, a: int) -> Given:
    """Two dictionaries whose keys are not in alphabetical order."""
    return Given(
        lambda gen: (
            (
                {"w": torch.randn(3, generator=gen).requires_grad_(), "b": torch.randn(3, generator=gen).requires_grad_()},
                {"z": torch.randn(z, generator=gen), "a": torch.randn(a, generator=gen)},
            ),
            {},
        )
    )


def reordered(z: int, a: int) -> Given:
    """The same, their keys in another order."""
    whole = dicts(z, a).build

    def build(gen: torch.Generator) -> Any:
        (first, second), _ = whole(gen)
        return (dict(reversed(first.items())), dict(reversed(second.items()))), {}

    return Given(build)


def trees(x: Any) -> Any:
    return x[0]["a"] * 2, [x[1], x[2][0]]


def tree_inputs(gen: torch.Generator) -> Any:
    a, b, c = (torch.randn(2, generator=gen) for _ in range(3))
    return ([{"a": a.requires_grad_()}, b, (c, None)],), {}


CASES: list[Case] = [
    case("calling: keyword arguments", keywords, inputs(t(3), y=g(3), z=t(3), scale=const(3.0))),
    case(
        "calling: keywords in another order",
        keywords,
        inputs(t(3), y=g(3), z=t(3)),
        calls=(TRAIN, Call(2, inputs=inputs(t(3), z=t(3), y=g(3)))),
    ),
    case(
        "calling: positional at build, keyword at call",
        keywords,
        t(3),
        g(3),
        calls=(TRAIN, at(t(3), y=g(3)), at(x=t(3), y=g(3)), at(y=g(3), x=t(3))),
    ),
    case("calling: keyword at build, positional at call", keywords, inputs(x=t(3), y=g(3)), calls=(TRAIN, at(t(3), g(3)))),
    case("calling: a default spelled out at call", keywords, t(3), g(3), calls=(TRAIN, at(t(3), g(3), scale=const(2.0)))),
    case(
        "calling: another value than the default at call",
        keywords,
        t(3),
        g(3),
        calls=(at(t(3), g(3), scale=const(5.0), refused="scale"),),
    ),
    case("calling: a missing argument", keywords, t(3), g(3), calls=(at(t(3), refused="."),)),
    case("calling: variadic", variadic, inputs(t(3), g(3), b=g(3), a=t(3)), calls=(TRAIN, at(t(3), g(3), a=t(3), b=g(3)))),
    case(
        "calling: non-tensor arguments",
        flag,
        inputs(g(3), const(True), mode=const("b"), power=const(3)),
        calls=(
            TRAIN,
            at(g(3), const(False), mode=const("b"), power=const(3), refused="True"),
            at(g(3), const(True), mode=const("a"), power=const(3), refused="mode"),
        ),
    ),
    case(
        "calling: number that equals another type", flag, inputs(g(3), const(True)), calls=(at(g(3), const(1), refused="True"),)
    ),
    case(
        "calling: argument dict order carry before x",
        carry,
        dicts(3, 3),
        calls=(TRAIN, Call(2, inputs=reordered(3, 3)), Call(3, training=False, grad=False)),
    ),
    case("calling: return a, w with w = a", with_alias, g(3), t(3)),
    case(
        "calling: carry returned as it came",
        with_carry_alias,
        Given(lambda gen: (({"w": torch.randn(3, generator=gen).requires_grad_()}, torch.randn(3, generator=gen)), {})),
    ),
    case("calling: nested containers", trees, Given(tree_inputs)),
    case(
        "calling: OrderedDict argument",
        lambda d: d["z"] * 2 - d["a"],
        Given(lambda gen: ((OrderedDict(z=torch.randn(2, generator=gen), a=torch.randn(2, generator=gen)),), {})),
    ),
    case(
        "calling: a wrong type",
        lambda x: x * 2,
        t(3),
        calls=(
            at(t(3, dtype=torch.float64), refused="float32"),
            at(const(None), refused="float32"),
            at(const(2.0), refused="float32"),
        ),
    ),
    case("calling: None as an argument", lambda x, y: x * 2, g(3), const(None), calls=(TRAIN, at(g(3), g(3), refused="None"))),
    case("calling: a float argument", lambda x, s: x * s, g(3), const(0.1), calls=(TRAIN, at(g(3), const(0.2), refused="0.1"))),
]

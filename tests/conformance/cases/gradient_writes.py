"""Custom backwards and hooks that write to the gradient they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from devtools.harness import Call, Case, case, g, module_case


class Doubling(torch.autograd.Function):
    """Its backward writes to what it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient.mul_(2)
        return gradient


class Zeroing(Doubling):
    """It writes to a part of it."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient[0].zero_()
        return gradient * 3


class Moving(torch.autograd.Function):
    """It writes one gradient to the other, and returns a view of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 3, y * 2

    @staticmethod
    def backward(ctx: Any, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        one.copy_(other)
        other.zero_()
        return one.view(-1).view_as(one), other + 1


class Hooked(nn.Module):
    """A hook of a submodule writes to a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Tanh()
        self.layer.register_full_backward_pre_hook(self._write)

    @staticmethod
    def _write(module: nn.Module, gradients: tuple[Tensor, ...]) -> None:
        gradients[0].mul_(3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(x * 2) + y.sin()  # type: ignore[no-any-return]


class HookedBeside(Hooked):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(x * 2) + y  # type: ignore[no-any-return]


def doubled(x: Tensor) -> Tensor:
    return Doubling.apply(x)  # type: ignore[no-untyped-call,no-any-return]


def with_hook(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda gradient: gradient.mul_(3))
    return y


def with_hook_of_node(x: Tensor) -> Tensor:
    y = x * 2
    y.grad_fn.register_prehook(lambda gradients: (gradients[0].mul_(3),))  # type: ignore[union-attr]
    return y


def written_back(x: Tensor, y: Tensor) -> Tensor:
    y = y * 1
    y.copy_(doubled(x))
    return y


def with_tangents(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = model(*args, **kwargs)
    results = out if isinstance(out, tuple) else (out,)
    tangents = [torch.arange(1.0, 1 + result.numel()).view_as(result) for result in results]
    torch.autograd.backward(results, tangents)
    return tangents, [tangent._version > 0 for tangent in tangents]


def transposed(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = model(*args, **kwargs)
    tangent = torch.ones(out.shape[::-1])
    out.backward(tangent.t())
    return tangent


def twice(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = model(*args, **kwargs)
    tangent = torch.ones_like(out)
    out.backward(tangent, retain_graph=True)
    out.backward(tangent)
    return tangent


def in_a_loss(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Autograd makes the tangent, and gives it to a leaf and to an earlier result as well."""
    leaf, earlier = torch.ones(3, 2, requires_grad=True), args[0].sin()
    out = model(*args, **kwargs)
    ((out + leaf + earlier) * torch.arange(6.0).view(3, 2)).sum().backward()
    return leaf.grad


def expanded(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    model(*args, **kwargs).sum().backward()


def unneeded(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Only the gradient of the second argument is wanted: the function of the first does not run."""
    tangents = [torch.ones(3, 2), torch.ones(3, 2)]
    (found,) = torch.autograd.grad(model(*args, **kwargs), args[1], tangents)
    return found.clone(), tangents


def one_tangent(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tangent = torch.ones(3, 2)
    torch.autograd.backward(model(*args, **kwargs), [tangent, tangent])
    return tangent


def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return doubled(x), doubled(y)


WRITTEN: dict[str, tuple[Callable[..., Any], int]] = {
    "the tangent": (doubled, 1),
    "a view of the tangent": (lambda x: doubled(x).view(-1), 1),
    "a row of the tangent": (lambda x: doubled(x)[1], 1),
    "a part of the tangent": (lambda x: Zeroing.apply(x * 2), 1),
    "the tangent, by two functions": (lambda x: doubled(doubled(x)), 1),
    "the tangents of two results": (both, 2),
    "tangents, one to another": (lambda x, y: Moving.apply(x, y), 2),
    "the tangent of a result and its view": (lambda x: (lambda y: (y, y.view(-1)))(doubled(x)), 1),
    "the tangent of a copy": (written_back, 2),
    "a part of a tangent of two inputs": (lambda x, y: torch.cat([doubled(x), x * y]), 2),
    "the tangent, in a hook": (with_hook, 1),
    "a gradient of its own": (lambda x: doubled(x).view(-1) * 1.5, 1),
}
SHARED: dict[str, tuple[Callable[..., Any], str]] = {
    "a gradient of two inputs": (lambda x, y: (doubled(x) + y) * 1.5, "grad_output"),
    "a tangent of two inputs": (lambda x, y: doubled(x) + y, "grad_output"),
    "a tangent of two functions": (lambda x, y: doubled(x) + doubled(y), "grad_output"),
    "an expanded gradient": (lambda x, y: doubled(x).sum() + y, "grad_output"),
    "a part of an expanded gradient": (lambda x, y: Zeroing.apply(x).sum() + y, "grad_output"),
    "an expanded gradient, in a hook": (lambda x, y: with_hook(x).sum() + y, "a hook writes to the gradient"),
    "a gradient of two inputs, in a hook": (lambda x, y: (with_hook(x) + y) * 1.5, "a hook writes to the gradient"),
    "a tangent of two inputs, in a hook": (lambda x, y: with_hook(x) + y, "a hook writes to the gradient"),
}
REFUSED = {
    f"gradient writes: {name}, {end}": rf"gradient_writes\.py\W.*line \d+.*{message}"
    for name, (_, message) in SHARED.items()
    for end in ("dynamo", "trace")
}
REFUSED |= {
    "gradient writes: a tangent of two inputs, in a hook of a node": "a hook writes to the gradient",
    "gradient writes: a tangent of two inputs, in a hook of a module": "a hook writes to the gradient",
    "gradient writes: second derivatives": "Second derivatives of this model.*custom backward writes to",
}

TWO = g(3, 2)
TRAINED: Any = {"methods": ("train",), "calls": (Call(act=with_tangents),)}
ROWS = {"x": {0: Dim("rows", min=2, max=9)}}

CASES: list[Case] = [
    *(
        case(f"gradient writes: {name}, {end}", function, *[TWO] * count, front_ends=(end,), **TRAINED)
        for name, (function, count) in (WRITTEN | {name: (function, 2) for name, (function, _) in SHARED.items()}).items()
        for end in ("dynamo", "trace")
    ),
    *(case(f"gradient writes: {act.__name__}", doubled, TWO, calls=(Call(act=act),)) for act in (transposed, twice, in_a_loss)),
    case("gradient writes: expanded (eager raises)", doubled, TWO, calls=(Call(act=expanded),)),
    case("gradient writes: unneeded", both, TWO, TWO, calls=(Call(act=unneeded),)),
    case("gradient writes: one tangent of two", both, TWO, TWO, calls=(Call(act=one_tangent, refused="shares memory with"),)),
    case("gradient writes: of any size", doubled, TWO, dynamic_shapes=ROWS, calls=(Call(act=with_tangents),)),
    case("gradient writes: cpu", both, TWO, TWO, targets=("cpu",), calls=(Call(act=with_tangents), Call(act=unneeded))),
    case("gradient writes: second derivatives", doubled, TWO, second_derivatives=True),
    case("gradient writes: a hook of a node", with_hook_of_node, TWO, **TRAINED),
    case(
        "gradient writes: a tangent of two inputs, in a hook of a node",
        lambda x, y: with_hook_of_node(x) + y,
        TWO,
        TWO,
        **TRAINED,
    ),
    module_case("gradient writes: a hook of a module", Hooked, TWO, TWO, **TRAINED),
    module_case("gradient writes: a tangent of two inputs, in a hook of a module", HookedBeside, TWO, TWO),
]

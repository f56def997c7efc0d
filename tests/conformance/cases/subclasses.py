"""Tensor subclasses (traceable wrappers) as arguments, state, results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from devtools.harness import INFER, TRAIN, Call, Case, Spec, case, g, inputs, module_case, n, t, together

from ..quantised import Quantised

KNOWN: dict[str, Any] = {"subclasses": (TwoTensor, Quantised)}


def two(*shape: int, grad: bool = False) -> Spec:
    """A TwoTensor; ``grad``: a leaf that requires a gradient."""

    def make(generator: torch.Generator) -> Tensor:
        parts = [torch.randn(shape, generator=generator) for _ in range(2)]
        return TwoTensor(*parts).requires_grad_(grad)  # type: ignore[no-any-return]

    return make


def two_result(*shape: int) -> Spec:
    """A TwoTensor that is a result of earlier computation; its leaf is watched."""

    def make(generator: torch.Generator) -> Tensor:
        leaf = two(*shape, grad=True)(generator)
        result = leaf * 1
        result.source = leaf
        return result  # type: ignore[no-any-return]

    return make


def four(*shape: int, grad: bool = False) -> Spec:
    """A TwoTensor of TwoTensors."""

    def make(generator: torch.Generator) -> Tensor:
        return TwoTensor(two(*shape)(generator), two(*shape)(generator)).requires_grad_(grad)  # type: ignore[no-any-return]

    return make


def lopsided(*shape: int, grad: bool = False) -> Spec:
    """A TwoTensor that holds a plain tensor and a TwoTensor."""

    def make(generator: torch.Generator) -> Tensor:
        return TwoTensor(t(*shape)(generator), two(*shape)(generator)).requires_grad_(grad)  # type: ignore[no-any-return]

    return make


def product(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sin()


def in_a_container(d: dict[str, Any]) -> dict[str, Any]:
    return {"sum": d["x"] + d["more"][0], "plain": d["more"][0].cos()}


class Linear(nn.Module):
    """Parameter and buffer are TwoTensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(TwoTensor(torch.randn(4, 3), torch.randn(4, 3)))
        self.register_buffer("shift", TwoTensor(torch.randn(3), torch.randn(3)))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight + self.shift) * self.bias


class TwoShifts(nn.Module):
    """Two parameters with equal gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(TwoTensor(torch.randn(3), torch.randn(3)))
        self.second = nn.Parameter(TwoTensor(torch.randn(3), torch.randn(3)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.first + self.second


class TurnsGradientsOn(Linear):
    """Turns gradients on inside."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return super().forward(x)


class Nested(nn.Module):
    """A parameter that is a TwoTensor of TwoTensors."""

    def __init__(self) -> None:
        super().__init__()
        parts = [TwoTensor(torch.randn(3), torch.randn(3)) for _ in range(2)]
        self.weight = nn.Parameter(TwoTensor(*parts))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Tied(nn.Module):
    """The same subclass under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(TwoTensor(torch.randn(3), torch.randn(3)))
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return x * self.first + self.second.sin()


class Frozen(nn.Module):
    """A weight that needs no gradient, and one that does."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Parameter(Quantised.of(torch.randn(4, 3)), requires_grad=False)
        self.adapter = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.fixed) + nn.functional.linear(x, self.adapter)


class QuantisedLinear(nn.Module):
    """A quantised weight that is trained: its gradient is dense."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(Quantised.of(torch.randn(4, 3)))
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias).relu()


class Counter(nn.Module):
    """A buffer that is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", TwoTensor(torch.zeros(3), torch.ones(3)))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x.detach())
        return x * self.seen


class Writes(nn.Module):
    """A parameter that is written to without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(TwoTensor(torch.randn(3), torch.randn(3)))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(0.5)
        return x * self.weight.sin()


def written(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x * y


def written_without_gradients(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x.sin() * y


def written_through_detach(x: Tensor, y: Tensor) -> Tensor:
    x.detach().mul_(2)
    return x * y


def written_only(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return y.sin()


def turned_in_place(x: Tensor, y: Tensor) -> Tensor:
    x.t_()
    return x.sin() + y


def added(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def cloned(x: Tensor) -> Tensor:
    return x.clone()


def several(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x * y, y.cos(), x.sin()


def independent(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, y * 3


def its_input(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x, x * y


def a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.view(-1)[2:5], x.t()


def views_of_a_result(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y.view(-1), y.t()


def split(x: Tensor) -> tuple[Tensor, ...]:
    return (x * 2).split(2)


def a_part(x: Tensor) -> Tensor:
    return x.a * 2  # type: ignore[attr-defined,no-any-return]


def a_part_itself(x: Tensor) -> Tensor:
    return x.a  # type: ignore[attr-defined,no-any-return]


def sums(x: Tensor) -> Tensor:
    return x.sum() * x.size(0)


def integers(x: Tensor) -> Tensor:
    return x.argmax(0)


def recomputed(x: Tensor, y: Tensor) -> Tensor:
    return checkpoint(product, x, y, use_reentrant=False) * 2  # type: ignore[no-any-return]


def dropped(x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.dropout(x * y, 0.5)


def twice(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gradients, two times."""
    result = model(*args, **kwargs)
    total = result.sum()
    first = torch.autograd.grad(total, args, retain_graph=True)
    return first, torch.autograd.grad(total, args)


def accumulated(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Two steps without ``zero_grad``, from one tangent, which stays what it was."""
    out = model(*args, **kwargs)
    tangent = torch.ones_like(out)
    for _ in range(2):
        out.backward(tangent, retain_graph=True)
    return tangent, [parameter.grad for parameter in model.parameters()] if isinstance(model, nn.Module) else []


def gradients_of(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = model(*args, **kwargs)
    return torch.autograd.grad(out, args, torch.ones_like(out))


def changed_before_backward(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What was saved is changed in place."""
    result = model(*args, **kwargs)
    with torch.no_grad():
        args[0].mul_(2)
    result.sum().backward()
    return result


def changed_result(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A result is changed in place, and goes on to the backward."""
    result = model(*args, **kwargs)
    result.add_(1)
    result.sum().backward()
    return result


def wrong_gradient(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A plain gradient for a TwoTensor."""
    result = model(*args, **kwargs)
    result.backward(torch.ones(result.shape))
    return result


def hooked(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Hooks see gradients as eager's do."""
    seen: list[Tensor] = []
    args[0].register_hook(seen.append)
    result = model(*args, **kwargs)
    result.register_hook(seen.append)
    result.sum().backward()
    return [gradient.clone() for gradient in seen]


def trained(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Three steps of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(3):
        optimizer.zero_grad()
        model(*args, **kwargs).pow(2).sum().backward()
        optimizer.step()
    return model(*args, **kwargs)


def reversed_kind(generator: torch.Generator) -> tuple[Any, ...]:
    return two(3, 4)(generator), two(3, 4)(generator)


def shared_part(generator: torch.Generator) -> tuple[Any, ...]:
    part = torch.randn(3, generator=generator)
    return TwoTensor(part, torch.randn(3, generator=generator)), TwoTensor(part, torch.randn(3, generator=generator))


def the_same(generator: torch.Generator) -> tuple[Any, ...]:
    x = two(3, grad=True)(generator)
    return x, x


@dataclass
class Recipe:
    """No plain data."""

    steps: int = 3


class Described(TwoTensor):
    """Needs an object to be put together."""

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["a", "b"], {"recipe": Recipe()}

    @staticmethod
    def __tensor_unflatten__(inner: Any, metadata: Any, size: Any, stride: Any) -> Tensor:
        return Described(inner["a"], inner["b"], size, stride)


def jagged(generator: torch.Generator) -> Tensor:
    return torch.nested.nested_tensor([torch.randn(2), torch.randn(3)], layout=torch.jagged)


class Named(torch.Tensor):
    """A subclass that cannot be taken apart."""


def described(generator: torch.Generator) -> tuple[Any, ...]:
    return (Described(torch.randn(3, generator=generator), torch.randn(3, generator=generator)),)


CLOSED_OVER = TwoTensor(torch.ones(3), torch.zeros(3))


def closes_over(x: Tensor) -> Tensor:
    return x * CLOSED_OVER


BATCH = {"x": {0: Dim("batch", min=2, max=9)}, "y": {0: Dim("batch", min=2, max=9)}}


def of(name: str, make: Callable[..., Case], *args: Any, **options: Any) -> Case:
    """A case of this page, loaded with its classes."""
    return make(f"subclasses: {name}", *args, **{**KNOWN, **options})


CASES: list[Case] = [
    of("as an argument", case, product, two(3, 4), g(3, 4)),
    of("as an argument that requires grad, with a plain one", case, product, two(3, 4, grad=True), g(3, 4)),
    of("as an argument, the plain one without gradient", case, product, two(3, 4, grad=True), t(3, 4)),
    of("both arguments", case, product, two(3, 4, grad=True), two(3, 4, grad=True)),
    of("as a non-leaf argument", case, product, two_result(3, 4), n(3, 4)),
    of("as an argument that gets no gradient", case, written_through_detach, two(3), two(3)),
    of(
        "in a container",
        case,
        in_a_container,
        inputs(lambda generator: {"x": two(3, grad=True)(generator), "more": [g(3)(generator)]}),
    ),
    of("nested", case, product, four(3, grad=True), g(3)),
    of("nested on one side", case, product, lopsided(3, grad=True), g(3)),
    of("nested, as a parameter", module_case, Nested, g(3)),
    of("parameter and buffer", module_case, Linear, g(2, 4)),
    of("parameter and buffer, TwoTensor argument", module_case, Linear, two(2, 4, grad=True)),
    of("parameter, gradients turned on inside", module_case, TurnsGradientsOn, g(2, 4)),
    of("parameter, trained", module_case, Linear, t(2, 4), calls=(Call(act=trained), INFER)),
    of("tied parameters", module_case, Tied, g(3)),
    of("quantised weight", module_case, QuantisedLinear, g(2, 3)),
    of("quantised weight, trained", module_case, QuantisedLinear, t(2, 3), calls=(Call(act=trained), TRAIN, INFER)),
    of("quantised weight, frozen", module_case, Frozen, g(2, 3)),
    of("several results", case, several, two(3, grad=True), g(3)),
    of("several results, gradient of one", case, several, two(3, grad=True), g(3), grad_outputs=("out[0]",)),
    of("independent results, gradient of the subclass", case, independent, two(3, grad=True), g(3), grad_outputs=("out[0]",)),
    of("independent results, gradient of the plain one", case, independent, two(3, grad=True), g(3), grad_outputs=("out[1]",)),
    of("an input is a result", case, its_input, two(3, grad=True), g(3)),
    of("views of an input", case, a_view, two(3, 4, grad=True)),
    of("views of an input, without gradient", case, a_view, two(3, 4)),
    of("views of a result", case, views_of_a_result, two(3, 4, grad=True)),
    of("multi-output views of a result", case, split, two(4, 3, grad=True)),
    of("a part is used", case, a_part, two(3, grad=True)),
    of("a part is returned", case, a_part_itself, two(3, grad=True)),
    of("reduced, with its size", case, sums, two(3, grad=True)),
    of("integers", case, integers, two(3, 4)),
    of("mutated", case, written, two(3), g(3)),
    of("mutated, non-leaf", case, written, two_result(3), g(3)),
    of("mutated, both subclasses", case, written, two(3), two(3, grad=True)),
    of("mutated under no_grad", case, written_without_gradients, two(3, grad=True), g(3)),
    of("mutated, hidden from autograd", case, written_through_detach, two(3, grad=True), g(3)),
    of("mutated, otherwise unused", case, written_only, two(3), g(3)),
    of("mutated by a subclass argument", case, written_only, two(3), two(3, grad=True)),
    of("sizes changed in place", case, turned_in_place, two(3, 3), g(3, 3)),
    of("buffer mutated", module_case, Counter, two(3, grad=True)),
    of("buffer mutated, plain argument", module_case, Counter, g(3)),
    of("parameter mutated under no_grad", module_case, Writes, g(3)),
    of("dynamic batch", case, product, two(3, 4, grad=True), g(3, 4), dynamic_shapes=BATCH, calls=(
        TRAIN,
        Call(2, inputs=inputs(two(7, 4, grad=True), g(7, 4))),
        Call(3, inputs=inputs(two(5, 4, grad=True), g(5, 4)), training=False, grad=False),
        Call(4, inputs=inputs(two(5, 4, grad=True), g(6, 4)), refused=r"\by"),
        Call(5, inputs=inputs(two(10, 4, grad=True), g(10, 4)), refused=r"\bx: expected .*=2\.\.9"),
    )),
    of("dynamic batch, size used", case, sums, two(3, 4, grad=True), dynamic_shapes={"x": {0: Dim("batch")}}, calls=(
        TRAIN,
        Call(2, inputs=inputs(two(7, 4, grad=True))),
    )),
    of("dynamic batch, nested", case, product, four(3, 4, grad=True), g(3, 4), dynamic_shapes=BATCH, calls=(
        TRAIN,
        Call(2, inputs=inputs(four(7, 4, grad=True), g(7, 4))),
    )),
    of("dynamic batch, views", case, views_of_a_result, two(3, 4, grad=True), dynamic_shapes={"x": {0: Dim("batch")}}, calls=(
        TRAIN,
        Call(2, inputs=inputs(two(7, 4, grad=True))),
    )),
    of("dynamic batch, parameters", module_case, Linear, g(3, 4), dynamic_shapes={"x": {0: Dim("batch")}}, calls=(
        TRAIN,
        Call(2, inputs=inputs(g(7, 4))),
    )),
    *(
        of(f"{name}, {words}", make, *given, calls=(Call(act=act), *([Call(2, act=act)] if act is accumulated else [])))
        for words, act in (("accumulated", accumulated), ("asked for", gradients_of))
        for name, make, *given in (
            ("equal gradients", case, added, two(3, grad=True), two(3, grad=True)),
            ("the tangent as the gradient", case, cloned, two(3, grad=True)),
            ("equal gradients of parameters", module_case, TwoShifts, two(3, grad=True)),
        )
    ),
    of("retain_graph", case, product, two(3, grad=True), g(3), calls=(Call(act=twice),)),
    of(
        "saved value changed in place (eager raises)",
        case,
        product,
        two(3, grad=True),
        g(3),
        calls=(Call(act=changed_before_backward),),
    ),
    of("result changed in place", case, product, two(3, grad=True), g(3), calls=(Call(act=changed_result),)),
    of("hooks", case, product, two(3, grad=True), g(3), calls=(Call(act=hooked),)),
    of("checkpoint", case, recomputed, two(3, grad=True), g(3)),
    of("dropout", case, dropped, two(3, grad=True), g(3)),
    of("the same one twice", case, product, together(the_same)),
    of("gradient of another class", case, product, two(3, grad=True), g(3), calls=(
        Call(act=wrong_gradient, refused="the gradient: expected a TwoTensor, got a Tensor"),
    )),
    of("another class at call", case, product, two(3, 4), g(3, 4), calls=(
        Call(inputs=inputs(t(3, 4), g(3, 4)), refused=r"\bx: expected a TwoTensor, got a Tensor"),
        Call(inputs=inputs(two(3, 5), g(3, 4)), refused=r"\bx: expected float32\[3,4\], got float32\[3,5\]"),
        Call(inputs=inputs(four(3, 4), g(3, 4)), refused=r"\bx\.a: expected a plain tensor, got a TwoTensor"),
        Call(inputs=inputs(two(3, 4, grad=True), g(3, 4)), refused=r"\bx: requires a gradient"),
        Call(inputs=inputs(two(3, 4), two(3, 4)), refused=r"\by: expected float32"),
    )),
    # Refused.
    of("metadata that is no plain data", case, torch.sin, together(described)),
    of("no __tensor_flatten__", case, torch.sin, lambda generator: torch.randn(3, generator=generator).as_subclass(Named)),
    of("two share a part", case, product, together(shared_part)),
    of("second derivatives", case, product, two(3, grad=True), g(3), second_derivatives=True),
    of("closed over", case, closes_over, g(3)),
    of("jagged", case, torch.sin, jagged),
]  # fmt: skip

"""Gradients of gradients, in bundles that were built for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from devtools.harness import Call, Case, case, g, ints, module_case, n, t

from .autograd import Mlp, Triple, Two


class Conv(nn.Module):
    """Convolution, normalisations, and statistics that the forward writes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.LayerNorm(16))
        self.out = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.transpose(-1, -2)).softmax(-1) @ v


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 2)

    def forward(self, i: Tensor) -> Tensor:
        return self.table(i).sin()


class Stopped(nn.Module):
    """Values that carry no gradient, for both ways of saying so."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed, self.layer = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.fixed(x)
        return self.layer(h * x).sin() * x.detach()


class ThroughTriple(nn.Module):
    """A gradient that is not that of the forward: what is saved depends on the input through it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = Triple.apply(x)
        return self.layer(h * h)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Dropout(0.5), nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square()


def penalty(model: Any, args: Any, kwargs: Any) -> Any:
    """A loss with the norm of a gradient in it."""
    y = model(*args)
    (grad,) = torch.autograd.grad(y.square().sum(), args[0], create_graph=True)
    (grad.square().sum() + y.sum()).backward()
    return y, grad


def penalty_of_parameters(model: Any, args: Any, kwargs: Any) -> Any:
    grads = torch.autograd.grad(model(*args).square().sum(), list(model.parameters()), create_graph=True)
    sum(grad.square().sum() for grad in grads).backward()
    return list(grads)


def penalty_twice(model: Any, args: Any, kwargs: Any) -> Any:
    (grad,) = torch.autograd.grad(model(*args).square().sum(), args[0], create_graph=True)
    grad.sum().backward(retain_graph=True)
    grad.square().sum().backward()


def backward_create_graph(model: Any, args: Any, kwargs: Any) -> Any:
    model(*args).square().sum().backward(create_graph=True)
    grad, args[0].grad = args[0].grad, None
    for p in model.parameters():
        p.grad = None
    grad.square().sum().backward()
    return grad


def penalty_left(model: Any, args: Any, kwargs: Any) -> Any:
    """One of two results, so one tangent is missing."""
    left = model(*args)["left"]
    (grad,) = torch.autograd.grad(left.sin().sum(), args[0], create_graph=True)
    grad.square().sum().backward()
    return grad


def hessian(model: Any, args: Any, kwargs: Any) -> Any:
    return torch.autograd.functional.hessian(lambda x: model(x).square().sum(), args[0])


def vector_hessian(model: Any, args: Any, kwargs: Any) -> Any:
    return torch.autograd.functional.vhp(lambda x: model(x).square().sum(), args[0], torch.ones_like(args[0]))


def hessian_vector(model: Any, args: Any, kwargs: Any) -> Any:
    return torch.autograd.functional.hvp(lambda x: model(x).square().sum(), args[0], torch.ones_like(args[0]))


def meta_step(model: Any, args: Any, kwargs: Any) -> Any:
    """Through a step of the inner optimizer."""
    params = dict(model.named_parameters())
    loss = model(*args).square().sum()
    grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
    stepped = {name: p - 0.1 * grad for (name, p), grad in zip(params.items(), grads, strict=True)}
    torch.func.functional_call(model, stepped, args).square().sum().backward()


def third(model: Any, args: Any, kwargs: Any) -> Any:
    (first,) = torch.autograd.grad(model(*args).square().sum(), args[0], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), args[0], create_graph=True)
    second.square().sum().backward()


def changed_between(model: Any, args: Any, kwargs: Any) -> Any:
    y = model(*args)
    with torch.no_grad():
        model.first.weight.mul_(2)
    torch.autograd.grad(y.square().sum(), args[0], create_graph=True)


def three(x: Tensor, y: Tensor) -> Any:
    return x * y.sin(), x.exp(), y.argmax()


def penalty_of_function(model: Any, args: Any, kwargs: Any) -> Any:
    first, *_ = model(*args)
    grads = torch.autograd.grad(first.square().sum(), args[:2], create_graph=True)
    sum(grad.square().sum() for grad in grads).backward()
    return list(grads)


def products(x: Tensor) -> Any:
    """Products of rows without a factor of 0, with one and with two, and a loss for labels that are a constant."""
    x = x * torch.tensor([[1.0, 1, 1], [0, 1, 1], [0, 0, 1]])
    return x.prod(1), nn.functional.cross_entropy(x, torch.tensor([0, 1, 2]))


def penalty_of_products(model: Any, args: Any, kwargs: Any) -> Any:
    found, loss = model(*args)
    (grad,) = torch.autograd.grad(found.sin().sum() + loss, args[0], create_graph=True)
    grad.square().sum().backward()
    return grad


def view_of_intermediate(x: Tensor) -> Any:
    y = x.exp()
    return y[0], y.view(-1)


def writes(x: Tensor, y: Tensor) -> Any:
    y.add_(x.detach())
    return x.exp() * y


class Counts(nn.Module):
    """Gradients that read what the forward overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y = (x + self.scale).exp()
        self.scale.add_(1)
        return y


THIRD = "first and second derivatives only"


def second(name: str, factory: Any, *specs: Any, act: Any = penalty, **options: Any) -> Case:
    options = {"calls": (Call(1, act=act),), "second_derivatives": True, "methods": ("train",), **options}
    return module_case(f"second derivatives: {name}", factory, *specs, **options)


CASES: list[Case] = [
    second("a penalty on the gradient", Mlp, g(5, 3)),  # R8
    second("of parameters", Mlp, g(5, 3), act=penalty_of_parameters),
    second("with retain_graph", Mlp, g(5, 3), act=penalty_twice),
    second("backward(create_graph=True)", Mlp, g(5, 3), act=backward_create_graph),
    second("of a non-leaf input", Mlp, n(5, 3)),
    second("torch.autograd.functional.hessian", Mlp, g(2, 3), act=hessian),
    second("torch.autograd.functional.vhp", Mlp, g(2, 3), act=vector_hessian),
    second(
        "torch.autograd.functional.hvp is a third derivative",
        Mlp,
        g(2, 3),
        calls=(Call(1, act=hessian_vector, refused=THIRD),),
    ),
    second("through an optimizer's step", Mlp, g(5, 3), act=meta_step),
    second("convolution, BatchNorm, LayerNorm, GELU", Conv, g(2, 3, 4, 4)),
    second("attention", Attention, g(2, 3, 4)),
    second("dropout draws the same numbers", Noisy, g(5, 3)),
    second("no_grad and detach inside", Stopped, g(5, 3)),
    second("autograd.Function with a gradient of its own", ThroughTriple, g(5, 3)),
    second("one tangent missing", Two, g(2, 3), act=penalty_left),
    second("dynamic batch", Mlp, g(5, 3), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=2)}}),
    second("dynamic batch, convolution", Conv, g(5, 3, 4, 4), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=2)}}),
    second("eval mode", Conv, g(2, 3, 4, 4), calls=(Call(1, training=False, act=penalty),), methods=("eval",)),
    second("several calls", Mlp, g(5, 3), calls=(Call(1, act=penalty), Call(2, act=penalty_twice), Call(3))),
    case(
        "second derivatives: a function, several results",
        three,
        g(3),
        g(3),
        calls=(Call(1, act=penalty_of_function),),
        second_derivatives=True,
    ),
    second("embedding", Embedded, ints(4), act=penalty_of_parameters),
    second(
        "third derivatives are one clear error",
        Mlp,
        g(5, 3),
        calls=(Call(1, act=third, refused=THIRD),),
    ),
    second(
        "a parameter changed before they are taken (eager raises)",
        Mlp,
        g(5, 3),
        calls=(Call(1, act=changed_between),),
    ),
    second("first derivatives as ever", Mlp, g(5, 3), calls=(Call(1), Call(2, grad=False), Call(3))),
    case(
        "second derivatives: products with factors of 0",
        products,
        g(3, 3),
        calls=(Call(1, act=penalty_of_products),),
        second_derivatives=True,
        methods=("train",),
    ),
    case("second derivatives: views of an intermediate", view_of_intermediate, g(2, 3), second_derivatives=True),
    case("second derivatives: an input is written to", writes, g(3), t(3), second_derivatives=True),
    second("a buffer that is read and overwritten", Counts, g(3)),
]
